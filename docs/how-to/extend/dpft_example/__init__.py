"""An example of a package whose parts dpft finds; see docs/how-to/extend.md."""
