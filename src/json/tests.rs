use std::collections::BTreeMap;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // only its form is tested
struct Document {
    entries: Vec<Entry>,
    by_name: Option<BTreeMap<String, Entry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // only its form is tested
struct Entry {
    id: u8,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    place: Option<(i64, i64)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    One,
    Other {},
}

fn problem(json: &str) -> String {
    parse::<Document>(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_problem_has_the_member_its_value_and_its_place() {
    for (json, expected) in [
        (
            r#"{"entries": [{"id": 1}, {"id": "1"}]}"#,
            "entries[1].id: \"1\" is not a whole number from 0 to 255 (line 1, column 34)",
        ),
        (
            r#"{"entries": [{"id": 256}]}"#,
            "entries[0].id: 256 is not a whole number from 0 to 255 (line 1, column 23)",
        ),
        (r#"{"entries": [{"id": -1}]}"#, "entries[0].id: -1 is not a whole number"),
        (r#"{"entries": [{"id": 1.5}]}"#, "entries[0].id: 1.5 is not a whole number"),
        (r#"{"entries": [{"id": null}]}"#, "entries[0].id: null is not a whole number"),
        ("{\"entries\": [\n{}]}", "entries[0].id: the member is missing (line 2, column 2)"),
        (r#"{"entries": 7}"#, "entries: 7 is not an array (line 1, column 13)"),
        (
            r#"{"entries": [{"id": 1, "name": true}]}"#,
            "entries[0].name: true is not text in quotes",
        ),
        (r#"{"entries": [{"id": 1, "id": 2}]}"#, "entries[0].id: the member occurs twice"),
        (
            r#"{"entries": [{"id": 1, "kind": "two"}]}"#,
            "entries[0].kind: \"two\" is not one of one, other",
        ),
        (r#"{"entries": [{"id": 1, "kind": {"other": 7}}]}"#, "entries[0].kind.other: 7 is not"),
        (
            r#"{"entries": [{"id": 1, "place": [1]}]}"#,
            "entries[0].place: an array is not an array of the right length",
        ),
        (
            r#"{"entries": [{"id": 1, "place": [1, "2"]}]}"#,
            "entries[0].place[1]: \"2\" is not a whole number",
        ),
        (
            r#"{"entries": [], "other": 1}"#,
            "other: the member is unknown; the members here are entries, by_name (line 1,",
        ),
        (
            r#"{"entries": [], "by_name": {"a.b\u0007": {"id": []}}}"#,
            "by_name.\"a.b\\u{7}\".id: an array is not a whole number",
        ),
        ("7", "7 is not an object (line 1, column 1)"),
        (r#"{"entries": []"#, "the JSON ends too early (line 1, column 14)"),
        ("{\"entries\": [\n x]}", "not JSON (line 2, column 2)"),
        (r#"{"entries": []} x"#, "not JSON (line 1, column 17)"),
    ] {
        assert!(problem(json).starts_with(expected), "{json}: {}", problem(json));
    }
    assert!(parse::<Document>(br#"{"entries": [{"id": 1, "kind": {"other": {}}}]}"#).is_ok());
}

#[test]
fn a_problem_is_bounded_and_has_no_control_characters() {
    let long = "\u{1b}x".repeat(1000);
    let value = serde_json::json!({ "entries": long }).to_string();
    assert!(problem(&value).len() < 1000 && !problem(&value).contains('\u{1b}'));
    let name = serde_json::json!({ "entries": [], "by_name": { &long: 7 } }).to_string();
    assert!(problem(&name).len() < 1000 && !problem(&name).contains('\u{1b}'));
    let large = format!(r#"{{"entries": [{}"x"]}}"#, " ".repeat(MAX_SEARCHED));
    assert!(problem(&large).starts_with("a member is missing, unknown or of another type"));
}

#[test]
fn a_value_of_a_document_has_no_line() {
    let error = from_value::<Entry>(&serde_json::json!({ "id": "x" })).unwrap_err();
    assert_eq!(error.to_string(), "id: \"x\" is not a whole number from 0 to 255");
}

#[test]
fn the_member_is_found_in_the_first_of_several_values() {
    let member = |json: &str| faulty_member::<Entry>(json.as_bytes());
    assert_eq!(member(r#"{"id": 1, "name": 7} {"id": "x"}"#).as_deref(), Some("name"));
    assert_eq!(member("7"), None);
    assert_eq!(member(r#"{"id": 1}"#), None);
}
