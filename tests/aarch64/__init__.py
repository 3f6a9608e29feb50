"""The build for aarch64, under QEMU."""
