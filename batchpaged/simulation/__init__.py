"""Replays a plan through the real scheduler, block pool and prefix cache, without a model, in virtual time."""
