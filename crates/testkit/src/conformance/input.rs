//! Hostile names and payloads: they come back byte by byte, or they are refused.

use tidegate_core::bounds::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX};
use tidegate_core::reader::TaskFilter;
use tidegate_core::{Claim, ErrorKind, NewTask, TaskState, WorkerId};

use super::fixture::{Fixture, claim_request, task, task_ids};

/// Names that are allowed and that somebody's escaping, folding or sorting gets wrong.
fn allowed_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "x",
        "X",
        " x",
        "x ",
        "'; drop table task; --",
        "\"quoted\" \\ $1 ?1 :name @p",
        "%_*[a-z]",
        "a:b:c",
        "group:a",
        "null",
        "1e3",
        "\u{e9}",
        "e\u{301}",
        "\u{fffd}\u{10ffff}",
        "עברית \u{202e}tfel",
        "👩\u{200d}👩\u{200d}👧",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("x".repeat(NAME_BYTES_MAX));
    names.push("ß".repeat(NAME_BYTES_MAX / 2));
    names
}

fn refused_names() -> Vec<String> {
    let mut names: Vec<String> =
        ["", "a\0b", "\0", "a\nb", "\ttab", "\u{7f}", "\u{85}"].map(str::to_owned).to_vec();
    names.push("x".repeat(NAME_BYTES_MAX + 1));
    names.push("ß".repeat(NAME_BYTES_MAX / 2 + 1));
    names
}

fn task_named(name: &str) -> NewTask {
    NewTask {
        queue: Some(name.into()),
        effective_group: Some(name.into()),
        job: Some(name.into()),
        workflow: Some(name.into()),
        unique_key: Some(name.into()),
        ..task(name)
    }
}

/// Every name in every place, and no two of them are taken for the same.
pub async fn allowed_names_are_stored_unchanged(fx: &Fixture) {
    let names = allowed_names();
    for name in &names {
        fx.set_limit(&format!("group:{name}"), Some(1)).await;
    }
    let stored = fx.submit_all(names.iter().map(|name| task_named(name)).collect()).await;
    for (name, id) in names.iter().zip(stored) {
        let worker = WorkerId(name.as_str().into());
        let claim = Claim {
            worker: worker.clone(),
            queues: [name.as_str().into()].into(),
            ..claim_request("", &[name], 9)
        };
        let claimed = fx.claim_as(claim).await;
        assert_eq!(task_ids(&claimed), [id], "{name:?}");
        let (attempt, view) = (&claimed[0], fx.view(id).await);
        let texts = [Some(&attempt.kind), Some(&attempt.queue), attempt.job.as_ref()];
        let more = [attempt.workflow.as_ref(), view.group.as_ref(), view.unique_key.as_ref()];
        for text in texts.into_iter().chain(more) {
            assert_eq!(text.map(|text| &**text), Some(name.as_str()));
        }
        let filter = TaskFilter { kind: Some(name.clone()), tasks_max: 9, ..Default::default() };
        assert_eq!(fx.reader.tasks(filter).await.expect("tasks").len(), 1, "{name:?}");
        let holders = fx.holders(&format!("group:{name}")).await;
        assert_eq!(holders[0].worker, Some(worker));
        fx.complete(&claimed).await;
    }
    fx.check_at_rest().await;
}

pub async fn invalid_names_are_rejected_in_every_field(fx: &Fixture) {
    for name in refused_names() {
        let some = || Some(name.clone());
        for bad in [
            NewTask { kind: name.clone(), ..task("a") },
            NewTask { queue: some(), ..task("a") },
            NewTask { effective_group: some(), ..task("a") },
            NewTask { job: some(), ..task("a") },
            NewTask { workflow: some(), ..task("a") },
            NewTask { unique_key: some(), ..task("a") },
        ] {
            let error = fx.try_submit(vec![task("a"), bad]).await.expect_err("a bad name");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
        }
        let claim =
            Claim { worker: WorkerId(name.as_str().into()), ..claim_request("", &["a"], 1) };
        let error = fx.store.claim(claim).await.expect_err("a bad worker");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
    }
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
}

/// Whoever asks for a name that cannot exist finds nothing, or is told so.
pub async fn query_for_invalid_name_finds_nothing_or_fails(fx: &Fixture) {
    fx.submit(task("a")).await;
    for name in refused_names() {
        for claim in [
            claim_request("w", &[&name], 9),
            Claim { queues: [name.as_str().into()].into(), ..claim_request("w", &["a"], 9) },
        ] {
            match fx.store.claim(claim).await {
                Ok(claimed) => assert_eq!(claimed, []),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}"),
            }
        }
        let filter = TaskFilter { kind: Some(name.clone()), tasks_max: 9, ..Default::default() };
        match fx.reader.tasks(filter).await {
            Ok(found) => assert_eq!(found, []),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}"),
        }
    }
}

pub async fn payload_is_stored_unchanged(fx: &Fixture) {
    let mut payloads: Vec<Vec<u8>> = [
        "null",
        " {\"b\" : 1,\r\n\t\"a\":2 , \"a\": 3}  ",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00 \\/ \u{1f600}\"",
        "123456789012345678901234567890.10e-400",
        "-0.0",
        "\"'; drop table task; -- \\\\ \"",
        "[[[[[[]]]]]]",
        "\"\u{2028}\u{feff}\"",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let mut largest = vec![b'x'; PAYLOAD_BYTES_MAX];
    (largest[0], largest[PAYLOAD_BYTES_MAX - 1]) = (b'"', b'"');
    payloads.push(largest);
    payloads.push([vec![b'['; PAYLOAD_DEPTH_MAX], vec![b']'; PAYLOAD_DEPTH_MAX]].concat());
    for payload in payloads {
        let id = fx.submit(NewTask::new("a", payload.clone())).await;
        let attempt = fx.claim_one().await;
        assert!(attempt.payload == payload, "{}", String::from_utf8_lossy(&payload));
        assert!(fx.view(id).await.payload == Some(payload));
        fx.complete(&[attempt]).await;
    }
}

pub async fn invalid_payload_is_rejected(fx: &Fixture) {
    let deep = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
    let mut bad: Vec<Vec<u8>> =
        ["", " ", "{", "nul", "{} {}", "[1,]", "{\"a\":}", "'a'", "\u{feff}1", "NaN", "\"\n\""]
            .map(|text| text.as_bytes().to_vec())
            .to_vec();
    bad.extend([b"\xff".to_vec(), b"\"\xc3\"".to_vec(), b"null\0".to_vec()]);
    bad.extend([deep(PAYLOAD_DEPTH_MAX + 1), deep(300_000), vec![b'1'; PAYLOAD_BYTES_MAX + 1]]);
    for payload in bad {
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(40)]).into_owned();
        let error = fx.try_submit(vec![NewTask::new("a", payload)]).await.expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
    }
    assert!(fx.reader.task_counts().await.expect("counts").is_empty());
}

/// Times at the edges are times: no overflow, no wrap.
pub async fn extreme_due_times_are_accepted(fx: &Fixture) {
    let far = NewTask { run_at: Some(i64::MAX), ..task("a") };
    let past = NewTask { run_at: Some(i64::MIN), ..task("a") };
    let both = fx.submit_all(vec![far, past]).await;
    assert_eq!(task_ids(&fx.claim(9).await), [both[1]]);
    assert_eq!(fx.view(both[0]).await.run_at, Some(i64::MAX));
    assert_eq!(fx.state(both[0]).await, TaskState::Scheduled);
}
