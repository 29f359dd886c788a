"""Samplers: which rows make a batch."""

from nearkin.samplers.class_representatives import ClassRepresentativeSampler
from nearkin.samplers.sampler import BalancedSampler, BatchSampler, RandomSampler

__all__ = ["BalancedSampler", "BatchSampler", "ClassRepresentativeSampler", "RandomSampler"]
