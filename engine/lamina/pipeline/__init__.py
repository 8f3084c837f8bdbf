"""Schedules: in what order model workers and attention workers do their parts of an iteration."""

from lamina.pipeline.serial import Attention, SerialPipeline, Spent

__all__ = ["Attention", "SerialPipeline", "Spent"]
