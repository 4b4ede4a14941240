//! Reads a run file: limits, kinds, jobs, tasks and workflows in TOML or JSON lines.
//!
//! Both formats have the same sections: `[[task]]` in TOML is `{"task": {...}}` in JSON lines.
//! The whole file is checked before anything of it is used, and every fault names its line and
//! column.

mod fields;
mod kind;
mod node;
mod plan;
mod sections;
mod source;
mod tasks;

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use toml::Spanned;
use toml::de::DeTable;

pub(crate) use node::{Field, Node, toml_fields};
pub(crate) use plan::{Plan, ServerPlan};
pub(crate) use source::{Result, SourceText, unknown_word_message};

/// A run file may have so many bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Reads and checks the file at `path`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Plan> {
    let format = Format::from_path(path)?;
    let text = read_text(path, "a run file", FILE_BYTES_MAX)?;
    Ok(parse(SourceText { name: &path.display().to_string(), text: &text }, format)?)
}

/// Reads the text of a file, but not much more than is allowed: a device has no end. `what` says
/// what kind of file it is.
pub(crate) fn read_text(path: &Path, what: &str, bytes_max: u64) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes))
        .with_context(|| format!("read {name}"))?;
    anyhow::ensure!(
        bytes.len() as u64 <= bytes_max,
        "{name} has more than {bytes_max} bytes, the most that {what} may have"
    );
    String::from_utf8(bytes).map_err(|bad| {
        let at = bad.utf8_error().valid_up_to();
        let good = String::from_utf8_lossy(&bad.as_bytes()[..at]).into_owned();
        let source = SourceText { name: &name, text: &good };
        source.error(at, "this is not UTF-8; save the file as UTF-8").into()
    })
}

/// Reads the text as TOML.
pub(crate) fn toml_table<'a>(source: SourceText<'a>) -> Result<Spanned<DeTable<'a>>> {
    DeTable::parse(source.text)
        .map_err(|error| source.error(error.span().map_or(0, |span| span.start), error.message()))
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Toml,
    JsonLines,
}

impl Format {
    fn from_path(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Ok(Self::Toml),
            Some("jsonl" | "ndjson" | "json") => Ok(Self::JsonLines),
            _ => anyhow::bail!(
                "{}: a run file is TOML or JSON lines; name it .toml or .jsonl",
                path.display()
            ),
        }
    }
}

fn parse(source: SourceText<'_>, format: Format) -> Result<Plan> {
    match format {
        Format::Toml => {
            let table = toml_table(source)?;
            plan::build_plan(source, sections::toml(source, table.get_ref())?)
        }
        Format::JsonLines => plan::build_plan(source, sections::json_lines(source)?),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn toml(text: &str) -> std::result::Result<Plan, String> {
        parse(SourceText { name: "f.toml", text }, Format::Toml).map_err(|fault| fault.to_string())
    }

    fn json(text: &str) -> std::result::Result<Plan, String> {
        parse(SourceText { name: "f.jsonl", text }, Format::JsonLines)
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn toml_and_json_lines_give_same_plan() {
        let one = toml(
            "[[limit]]\ngroup = \"partner\"\ncapacity = 3\n\
             [[job]]\nname = \"a\"\nweight = 2\n\
             [[task]]\nkind = \"sleep\"\ncount = 2\njob = \"a\"\npayload = { ms = 5 }\n\
             [[workflow]]\nname = \"w\"\nsteps = [{ kind = \"noop\" }, { kind = \"noop\" }]\n",
        )
        .unwrap();
        let other = json(
            "{\"limit\":{\"group\":\"partner\",\"capacity\":3}}\n\n\
             {\"task\":{\"kind\":\"sleep\",\"count\":2,\"job\":\"a\",\"payload\":{\"ms\":5}}}\n\
             {\"job\":{\"name\":\"a\",\"weight\":2}}\n\
             {\"workflow\":{\"name\":\"w\",\"steps\":[{\"kind\":\"noop\"},{\"kind\":\"noop\"}]}}\n",
        )
        .unwrap();
        assert_eq!((&one.limits, &one.jobs), (&other.limits, &other.jobs));
        assert_eq!(one.tasks, other.tasks);
        assert_eq!(one.tasks.len(), 4);
        assert_ne!(one.run_id, other.run_id);
    }

    #[test]
    fn generated_tasks_are_numbered() {
        let plan = toml(
            "[server]\n[[task]]\nkind = \"http\"\ncount = 2\npayload = { path = \"/{n}\" }\n\
             [[workflow]]\nname = \"w{n}\"\ncount = 2\nsteps = [{ kind = \"noop\", count = 3 }]\n",
        )
        .unwrap();
        assert_eq!(plan.tasks[1].task.payload, br#"{"path":"/2"}"#);
        assert_eq!(plan.tasks.len(), 8);
        assert_eq!(plan.tasks[7].task.workflow.as_deref(), Some("w2"));
    }

    #[test]
    fn toml_errors_name_line_and_column() {
        let mut faults = String::new();
        let cases = [
            ("[[task]\n", "f.toml:1:8:"),
            ("[[task]]\nkind = \"noop\"\ncuont = 2\n", "f.toml:3:1:"),
            ("[[tsak]]\n", "f.toml:1:3:"),
            ("[[task]]\nkind = \"nope\"\n", "f.toml:2:8:"),
            ("[[limit]]\ngroup = \"x\"\ncapacity = -1\n", "f.toml:3:12:"),
            ("[[task]]\nkind = \"sleep\"\n", "f.toml:1:1:"),
            ("[[task]]\nkind = \"noop\"\njob = \"b\"\n", "f.toml:3:7:"),
            ("[[task]]\nkind = 3\n", "f.toml:2:8:"),
        ];
        for (text, place) in cases {
            let fault = toml(text).unwrap_err();
            assert!(fault.starts_with(place), "{text:?}: {fault}");
            faults.push_str(&format!("{fault}\n"));
        }
        assert_snapshot!(
            faults,
            @r#"
            f.toml:1:8: unclosed array table, expected `]`
            f.toml:3:1: unknown key of task `cuont`; did you mean `count`? Known: `kind`, `count`, `payload`, `queue`, `group`, `weight`, `priority`, `delay_ms`, `max_attempts`, `timeout_ms`, `on_failure`, `job`, `workflow`
            f.toml:1:3: unknown section `tsak`; did you mean `task`? Known: `server`, `limit`, `kind`, `job`, `task`, `workflow`
            f.toml:2:8: unknown kind `nope`; did you mean `noop`? Known: `noop`, `sleep`, `http`, `exec`
            f.toml:3:12: the limit "group:x" cannot be -1; it must be between 0 (paused) and 2147483647; where nobody sets a limit there is none
            f.toml:1:1: the payload does not fit kind `sleep`: invalid type: null, expected struct Payload at line 1 column 4; one that does: {"ms": 500}
            f.toml:3:7: unknown job `b`; this file has no [[job]], add one
            f.toml:2:8: `kind` is a string, not a integer
            "#
        );
    }

    #[test]
    fn json_lines_errors_name_line_and_column() {
        let mut faults = String::new();
        let cases = [
            ("{\"task\":{\"kind\":\"noop\"}}\n{\"task\":\n", "f.jsonl:2:"),
            ("{\"task\":{\"kind\":\"noop\",\"cuont\":2}}", "f.jsonl:1:24:"),
            ("\n[1]\n", "f.jsonl:2:1:"),
            ("{\"task\":{\"kind\":\"noop\",\"kind\":\"noop\"}}", "f.jsonl:1:9:"),
        ];
        for (text, place) in cases {
            let fault = json(text).unwrap_err();
            assert!(fault.starts_with(place), "{text:?}: {fault}");
            faults.push_str(&format!("{fault}\n"));
        }
        assert_snapshot!(
            faults,
            @r#"
            f.jsonl:2:8: EOF while parsing a value
            f.jsonl:1:24: unknown key of task `cuont`; did you mean `count`? Known: `kind`, `count`, `payload`, `queue`, `group`, `weight`, `priority`, `delay_ms`, `max_attempts`, `timeout_ms`, `on_failure`, `job`, `workflow`
            f.jsonl:2:1: each line is an object such as {"task": {"kind": "noop"}}
            f.jsonl:1:9: task is a table, not a table
            "#
        );
        let deep = format!(
            "{{\"task\":{{\"kind\":\"noop\",\"payload\":{}{}}}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        let fault = json(&deep).unwrap_err();
        assert!(fault.contains("64"), "{fault}");
        assert_snapshot!(fault, @"f.jsonl:1:34: the payload is nested deeper than 64 levels");
    }
}
