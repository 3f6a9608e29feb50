"""Follows the allocator and the communicators of this process: the service, and what it finds in torch."""
