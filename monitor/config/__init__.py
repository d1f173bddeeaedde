"""Every threshold of the keeper: unit, default, where it comes from, what it trades.

Pure: nothing here reads a file, the environment or a clock. Belongs here: the thresholds with their
ranges, by who goes by them (`detecting`, `deciding`, `keeping`), and all of them together
(`config`). Not here: the policy file and the command line that set them.
"""

from monitor.config.config import ConfigError, KeeperConfig

__all__ = ["ConfigError", "KeeperConfig"]
