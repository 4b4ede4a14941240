//! Kinds and the limits that come with them.

use tidegate_core::bounds::{ATTEMPTS_MAX, CRASHES_MAX};
use tidegate_core::{Backoff, CapacitySource, DayWindow, ErrorKind, Kind, NewTask, Registration};

use super::fixture::{Fixture, claim_request, task, task_ids, tasks};

fn kinds(kinds: Vec<Kind>) -> Registration {
    Registration { kinds, ..Registration::default() }
}

fn limits(limits: &[(&str, u32)], source: Option<CapacitySource>) -> Registration {
    let limits = limits.iter().map(|(group, capacity)| ((*group).to_owned(), *capacity)).collect();
    Registration { limits, source, ..Registration::default() }
}

pub async fn registered_kind_is_stored_with_every_field(fx: &Fixture) {
    let kind = Kind {
        name: "report".into(),
        queue: "nightly".into(),
        max_attempts: 7,
        timeout_ms: Some(1234),
        day_window: Some(DayWindow::parse("22:00", "06:00").expect("window")),
        backoff: Backoff { base_ms: 50, cap_ms: 60_000 },
        remove_on_completed_days: Some(1),
        remove_on_failed_days: Some(30),
        max_crashes: 9,
    };
    let plain = Kind::new("plain");
    fx.store.register(kinds(vec![kind.clone(), plain.clone()])).await.expect("register");
    assert_eq!(fx.reader.kinds().await.expect("kinds"), [plain, kind], "by name");
}

pub async fn repeated_registration_changes_nothing(fx: &Fixture) {
    let registration = Registration { kinds: vec![Kind::new("a")], ..limits(&[("a", 3)], None) };
    let first = fx.store.register(registration.clone()).await.expect("register");
    let limit = fx.limit("group:a").await;
    let second = fx.store.register(registration).await.expect("register again");
    assert_eq!((first, second), Default::default(), "nothing is overruled");
    assert_eq!(fx.limit("group:a").await, limit, "nothing changed");
    assert_eq!(fx.reader.kinds().await.expect("kinds").len(), 1);
}

pub async fn registration_overwrites_known_kind(fx: &Fixture) {
    let kind = |max_attempts| Kind { max_attempts, ..Kind::new("a") };
    fx.store.register(kinds(vec![kind(2)])).await.expect("register");
    fx.submit_all(tasks("a", 2)).await;
    assert_eq!(fx.claim_one().await.max_attempts, 2);
    fx.store.register(kinds(vec![kind(9)])).await.expect("register");
    assert_eq!(fx.claim_one().await.max_attempts, 9, "also for tasks from before");
}

pub async fn default_settings_do_not_overwrite_known_kind(fx: &Fixture) {
    let known = Kind { max_attempts: 2, timeout_ms: Some(5), ..Kind::new("a") };
    fx.store.register(kinds(vec![known.clone()])).await.expect("register");
    let new = Kind { max_attempts: 3, timeout_ms: Some(7), ..Kind::new("b") };
    let defaults = vec![Kind::new("a"), new.clone()];
    let registration = Registration { default_kinds: defaults, ..Registration::default() };
    fx.store.register(registration.clone()).await.expect("register");
    fx.store.register(registration).await.expect("register again");
    assert_eq!(fx.reader.kinds().await.expect("kinds"), [known, new]);
    let defaults = vec![Kind { max_attempts: 0, ..Kind::new("c") }];
    let bad = Registration { default_kinds: defaults, ..Registration::default() };
    assert_eq!(fx.store.register(bad).await.expect_err("bad").kind(), ErrorKind::Invalid);
}

pub async fn submit_does_not_overwrite_registered_kind(fx: &Fixture) {
    let kind = Kind { max_attempts: 2, ..Kind::new("a") };
    fx.store.register(kinds(vec![kind.clone()])).await.expect("register");
    fx.submit(task("a")).await;
    assert_eq!(fx.reader.kinds().await.expect("kinds"), [kind]);
}

pub async fn task_without_queue_uses_queue_of_its_kind(fx: &Fixture) {
    let kind = Kind { queue: "slow".into(), ..Kind::new("a") };
    fx.store.register(kinds(vec![kind])).await.expect("register");
    let own = fx.submit(task("a")).await;
    let other = fx.submit(NewTask { queue: Some("default".into()), ..task("a") }).await;
    assert_eq!(task_ids(&fx.claim(9).await), [other]);
    let slow =
        tidegate_core::Claim { queues: ["slow".into()].into(), ..claim_request("slow", &["a"], 9) };
    let claimed = fx.claim_as(slow).await;
    assert_eq!(task_ids(&claimed), [own]);
    assert_eq!(&*claimed[0].queue, "slow");
}

/// Also where the kind was used before, and its queue is remembered.
pub async fn kind_moved_to_another_queue_applies_to_new_tasks_only(fx: &Fixture) {
    let kind = |queue: &str| Kind { queue: queue.into(), ..Kind::new("a") };
    let asks_in = |queue: &str| tidegate_core::Claim {
        queues: [queue.into()].into(),
        ..claim_request(queue, &["a"], 9)
    };
    fx.store.register(kinds(vec![kind("first")])).await.expect("register");
    let first = [fx.submit(task("a")).await, fx.submit(task("a")).await];
    fx.store.register(kinds(vec![kind("second")])).await.expect("register");
    let second = [fx.submit(task("a")).await, fx.submit(task("a")).await];
    let claimed = fx.claim_as(asks_in("first")).await;
    assert_eq!(task_ids(&claimed), first);
    let claimed = fx.claim_as(asks_in("second")).await;
    assert_eq!(task_ids(&claimed), second);
}

pub async fn attempts_and_timeout_of_task_override_those_of_kind(fx: &Fixture) {
    let kind = Kind { max_attempts: 2, timeout_ms: Some(500), ..Kind::new("a") };
    fx.store.register(kinds(vec![kind])).await.expect("register");
    let own = NewTask { max_attempts: Some(4), timeout_ms: Some(900), ..task("a") };
    fx.submit_all(vec![task("a"), own]).await;
    let given: Vec<_> =
        fx.claim(2).await.iter().map(|one| (one.max_attempts, one.timeout_ms)).collect();
    assert_eq!(given, [(2, Some(500)), (4, Some(900))]);
}

pub async fn registration_sets_group_limits(fx: &Fixture) {
    fx.store.register(limits(&[("a", 2)], None)).await.expect("register");
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.source), (Some(2), CapacitySource::Registration));
    fx.submit_all(tasks("a", 5)).await;
    assert_eq!(fx.claim(9).await.len(), 2);
}

pub async fn later_registration_replaces_limit_of_earlier_one(fx: &Fixture) {
    fx.store.register(limits(&[("a", 2)], None)).await.expect("register");
    fx.store.register(limits(&[("a", 4)], None)).await.expect("register");
    let limit = fx.limit("group:a").await;
    assert_eq!((limit.capacity, limit.version), (Some(4), 2));
}

pub async fn registration_reports_limits_overridden_by_operator(fx: &Fixture) {
    fx.set_limit("group:a", Some(5)).await;
    let said = fx.store.register(limits(&[("a", 3), ("b", 1)], None)).await.expect("register");
    assert_eq!(said.overridden_limits, [("a".to_owned(), Some(5), CapacitySource::Operator)]);
    assert_eq!(fx.limit("group:a").await.capacity, Some(5));
    assert_eq!(fx.limit("group:b").await.capacity, Some(1));
}

pub async fn configuration_takes_precedence_over_registration(fx: &Fixture) {
    let configuration = limits(&[("a", 8)], Some(CapacitySource::Configuration));
    fx.store.register(configuration).await.expect("register");
    let said = fx.store.register(limits(&[("a", 3)], None)).await.expect("register");
    assert_eq!(said.overridden_limits, [("a".to_owned(), Some(8), CapacitySource::Configuration)]);
    assert_eq!(fx.limit("group:a").await.capacity, Some(8));
}

/// A refused registration leaves no trace, also of its good parts.
pub async fn invalid_registration_is_rejected_as_a_whole(fx: &Fixture) {
    let good = Kind::new("good");
    let mut bad = vec![limits(&[("good", 1), ("huge", u32::MAX)], None)];
    bad.push(limits(&[("good", 1), ("", 1)], None));
    bad.push(limits(&[("good", 1), ("a\0b", 1)], None));
    for kind in [
        Kind::new(""),
        Kind::new("a\nb"),
        Kind { queue: "\u{7f}".into(), ..Kind::new("b") },
        Kind { max_attempts: 0, ..Kind::new("b") },
        Kind { max_attempts: ATTEMPTS_MAX + 1, ..Kind::new("b") },
        Kind { max_crashes: 0, ..Kind::new("b") },
        Kind { max_crashes: CRASHES_MAX + 1, ..Kind::new("b") },
        Kind { timeout_ms: Some(0), ..Kind::new("b") },
        Kind { backoff: Backoff { base_ms: -1, cap_ms: 1 }, ..Kind::new("b") },
        Kind { day_window: Some(DayWindow { start_ms: 5, end_ms: 5 }), ..Kind::new("b") },
    ] {
        bad.push(kinds(vec![kind]));
    }
    for mut registration in bad {
        registration.kinds.insert(0, good.clone());
        let error = fx.store.register(registration.clone()).await.expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{registration:?}");
        assert_eq!(fx.reader.kinds().await.expect("kinds"), [], "{registration:?}");
        assert_eq!(fx.reader.limits().await.expect("limits"), [], "{registration:?}");
    }
}
