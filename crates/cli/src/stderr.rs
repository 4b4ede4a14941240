//! Talk for people, on stderr. A closed stderr is nobody's problem.

/// Says a line on stderr.
macro_rules! print_message {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($part)*);
    }};
}

pub(crate) use print_message;
