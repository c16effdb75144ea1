//! Commands of keygate as text, for people who paste them into a shell.

use std::iter::once;

/// The command `keygate` with these arguments, and with the option `--config` if there is a file.
pub(crate) fn keygate(arguments: &[&str], config: Option<&str>) -> String {
    let config = config.map(|path| ["--config", path]);
    let arguments = arguments.iter().copied().chain(config.into_iter().flatten());
    once("keygate").chain(arguments).map(word).collect::<Vec<_>>().join(" ")
}

/// The text as one word of a shell.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "/._-+:@%,".contains(it);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_each_argument_as_it_was() {
        let arguments = [
            "/etc/keygate/keygate.toml",
            "plain-._+:@%,",
            "é",
            "",
            "a b",
            "it's",
            "'",
            "$HOME",
            "`id`",
            "~",
            "*",
            "a\\",
            "\"",
            "a;b|c&d>e<f(g)h{i}j[k]l#m!n?o^p=q",
            "two\nlines",
        ];
        for path in arguments {
            let command = keygate(&["filter", "info", path], Some(path));
            let script = format!("keygate() {{ printf '%s\\0' \"$@\"; }}; {command}");
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let words = ["filter", "info", path, "--config", path].map(|it| format!("{it}\0"));
            assert_eq!(String::from_utf8(output.stdout).unwrap(), words.concat(), "{command}");
        }
        assert_eq!(keygate(&["drain", "--undo"], None), "keygate drain --undo");
        let plain = "keygate reload --config /etc/keygate.toml";
        assert_eq!(keygate(&["reload"], Some("/etc/keygate.toml")), plain);
    }
}
