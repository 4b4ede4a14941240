-- Changes when another connection has committed, never by this one.
pragma data_version
