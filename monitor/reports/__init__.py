"""What the analysis found, for people and for scripts: text, JSON, one HTML page."""
