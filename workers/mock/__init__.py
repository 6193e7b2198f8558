"""Workers without a model: the real protocol, with the times of a profile. May import interface/, process/,
roles/, telemetry/, transfers/ and engine/step_counts; no torch."""
