"""The model on disk: its directory and numbered versions, those that are downloaded first, how much memory it needs,
and whether the files of a version that is served are still those that it was loaded from. May import `config` and
`terminal`."""
