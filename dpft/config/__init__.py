"""Settings: one typed schema, and how a config is composed from conf/."""
