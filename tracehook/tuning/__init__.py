"""Symmetric memory or plain: measured once (``tracehook tune``), used by the policy ``measured``."""
