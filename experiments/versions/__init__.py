"""What works with which torch and which TorchFT: `make matrix-versions`, docs/versions.md."""
