"""A GPU in form alone, so that what mixes devices fails on machines without one."""
