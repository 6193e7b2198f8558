"""What `slipstream check` and a start refuse: settings, models and repositories that would not work. It may import what
`commands` may."""
