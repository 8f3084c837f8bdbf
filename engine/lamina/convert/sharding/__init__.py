"""Slices rewritten for several ranks."""

from lamina.convert.sharding.sharded import Sharded, shard

__all__ = ["Sharded", "shard"]
