"""Pool policies: which pool do a group's symmetric tensors come from? What a policy of your own needs is here."""

from __future__ import annotations

from tracehook.nccl.segment_rules import LeaveOut
from tracehook.policies.base import Answer, Policy, Request, Threshold

__all__ = ["Answer", "LeaveOut", "Policy", "Request", "Threshold"]
