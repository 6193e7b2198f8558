"""The configuration of a tensor model (`config.pbtxt`): its text, its defaults, what is refused, its JSON, and the
`ModelSpec` that the router works with. It imports `tensors` and the messages of tritonclient, and reads no files but
the labels and initial states in one model's folder."""
