"""Workers without a model: the real protocol, with the times of a profile. May import interface/, process/,
roles/, telemetry/, transfers/, engine/step_counts and its script/; no torch."""
