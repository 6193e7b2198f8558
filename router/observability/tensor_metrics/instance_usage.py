"""Prometheus metrics of what the processes of tensor models take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.instances.instance_port import HostUsage


def instance_usage_families(hosts: Sequence[HostUsage]) -> Iterator[Metric]:
    """Of the processes of tensor models and of the hosts that start them, as old as the host's last report: five
    seconds."""
    own, labels = ["host"], ["host", "model", "version", "instance"]
    what_cpu, what_memory = "Seconds of processors that {} has taken.", "Memory that {} occupies."
    host, instance = "an instance host's own process", "the process of an instance"
    host_cpu = CounterMetricFamily("slipstream:instance_host_cpu_seconds", what_cpu.format(host), labels=own)
    host_memory = GaugeMetricFamily(
        "slipstream:instance_host_resident_memory_bytes", what_memory.format(host), labels=own
    )
    cpu = CounterMetricFamily("slipstream:instance_cpu_seconds", what_cpu.format(instance), labels=labels)
    memory = GaugeMetricFamily("slipstream:instance_resident_memory_bytes", what_memory.format(instance), labels=labels)
    for one in hosts:
        if one.own is not None:
            host_cpu.add_metric([one.name], one.own.cpu_seconds)
            host_memory.add_metric([one.name], one.own.resident_memory_bytes)
        for start, usage in one.instances:
            who = [one.name, start.model, start.version, start.name]
            cpu.add_metric(who, usage.cpu_seconds)
            memory.add_metric(who, usage.resident_memory_bytes)
    return iter((host_cpu, host_memory, cpu, memory))
