"""When tensor requests run, and which of them together: queues, batchers, rate limits and the response cache, as state
machines that are given events with a time. It imports only `tensors`."""
