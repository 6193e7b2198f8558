"""Workers without a model: the real protocol, with the times of a profile. May import telemetry/, transfers/ and
engine/kv_cache; no torch."""
