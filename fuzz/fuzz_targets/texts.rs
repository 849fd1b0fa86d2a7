//! Any text that the library reads as written by users or by the kernel: settings from URIs and the
//! environment, the names of logs, and lines of the kernel's block trace.
#![no_main]

// These modules are private to their crates, and stay private: no other code should parse such texts.
#[allow(dead_code)]
#[path = "../../proof/measure/iotrace/src/parse.rs"]
mod parse;
#[allow(dead_code, unused_imports)]
#[path = "../../crates/sqlite-vfs/src/settings/mod.rs"]
mod settings;

use duralite_format::LogId;
use libfuzzer_sys::fuzz_target;
use settings::{Settings, rows};

fuzz_target!(|data: &[u8]| {
    let Some((&mode, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match mode % 4 {
        0 => rows().iter().for_each(|setting| set_and_show(setting.name(), &text)),
        1 => resolve(&text),
        2 => trace_lines(&text),
        _ => {
            if let Ok(id) = text.parse::<LogId>() {
                assert_eq!(id.to_string(), text.to_lowercase());
            }
        }
    }
});

/// If a setting is set to the value that it displays, it must keep its value.
fn set_and_show(name: &str, value: &str) {
    let mut settings = Settings::default();
    match settings.set(name, value) {
        Ok(()) => {
            let shown = settings.value_of(name).unwrap();
            if (name, shown.as_str()) == ("background_checkpoint", "1") {
                // A value of one frame can only be given as "01", because "1" is the switch for on.
                return;
            }
            let mut again = Settings::default();
            again.set(name, &shown).unwrap();
            assert_eq!(again.value_of(name).unwrap(), shown);
            rows().iter().for_each(|row| assert_eq!(row.get(&again), row.get(&settings)));
        }
        Err(message) => assert!(message.contains(name)),
    }
}

/// The text's lines `name=value` are URI parameters; its lines `NAME=value` are the environment.
fn resolve(text: &str) {
    let find = |wanted: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
    };
    let names = || text.lines().map(|line| line.split('=').next().unwrap_or_default().to_owned());
    if settings::refuse_unknown(names(), names()).is_err() {
        return;
    }
    let Ok(first) = Settings::resolve(find, find) else { return };
    // The parameters made for another connection must give it the same settings, without a conflict.
    let given = first.parameters();
    let again = |name: &str| given.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    let second = Settings::resolve(again, |_| None).expect("its own parameters");
    assert_eq!(second.conflict_with(&first), None);
    assert_eq!(second.parameters(), given);
    for (name, value) in &given {
        assert_eq!(first.value_of(name).as_ref(), Some(value));
    }
}

fn trace_lines(text: &str) {
    for line in text.lines() {
        if let Some(event) = parse::parse_line(line) {
            assert!(event.bytes > 0 || event.action == parse::Action::Other);
            assert!(!event.fua || event.bytes > 0);
        }
        if let Some(mapping) = parse::parse_mapping(line) {
            assert!(mapping.block.checked_add(mapping.blocks).is_some());
        }
    }
}
