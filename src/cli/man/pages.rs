//! What the manual pages say besides what `--help` says.

mod filter;

/// The sections of a page after its options.
pub(super) struct Page {
    /// Where the options alone do not show how they go together; a form a line.
    pub(super) synopsis: Option<&'static str>,
    pub(super) sections: &'static [Section],
    pub(super) see_also: &'static [&'static str],
}

/// A heading, and what is below it.
pub(super) type Section = (&'static str, &'static [Part]);

pub(super) enum Part {
    /// Lines as they are typed.
    Commands(&'static str),
    /// Terms and what they mean.
    Terms(&'static [(&'static str, &'static str)]),
    /// A paragraph.
    Text(&'static str),
}

/// The page of a command by the name of the page; a command without one has the options alone.
pub(super) fn of(name: &str) -> Page {
    match name {
        "keygate" => KEYGATE,
        "keygate-completions" => COMPLETIONS,
        "keygate-demo" => DEMO,
        "keygate-filter" => filter::FILTER,
        "keygate-filter-accept" => filter::ACCEPT,
        "keygate-filter-add" => filter::ADD,
        "keygate-filter-create" => filter::CREATE,
        "keygate-filter-diff" => filter::DIFF,
        "keygate-filter-info" => filter::INFO,
        "keygate-filter-query" => filter::QUERY,
        "keygate-healthcheck" => HEALTHCHECK,
        "keygate-key" => KEY,
        "keygate-report" => REPORT,
        "keygate-run" => RUN,
        "keygate-validate" => VALIDATE,
        _ => Page { synopsis: None, sections: &[], see_also: &["keygate"] },
    }
}

const EXIT: &str = "EXIT STATUS";
const EXAMPLES: &str = "EXAMPLES";
const FILES: &str = "FILES";

const USAGE: (&str, &str) = ("2", "wrong usage");
const CONFIGURATION: (&str, &str) = ("2", "wrong usage or configuration");
const UNUSABLE: (&str, &str) = ("3", "a file or input that cannot be read or is not valid");
const REFUSED: (&str, &str) = ("4", "the system refuses: an address in use, no permission");
const UNWRITTEN: (&str, &str) = ("4", "the result cannot be written");

const CONFIGURATION_FILE: (&str, &str) =
    ("/etc/keygate/keygate.toml", "The configuration, unless `--config` names another.");
const CHECKSUM: (&str, &str) = (
    "FILE.sha256",
    "Where it stands beside a filter, in the form that sha256sum(1) writes, a filter that does not \
     match it is refused.",
);

const KEYGATE: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                (
                    "0",
                    "done; `filter query`: nothing found; `filter diff`: the same; `healthcheck`: \
                     ready",
                ),
                (
                    "1",
                    "`filter query`: a key was found; `filter diff`: different; `healthcheck`: not \
                     ready, or no answer",
                ),
                CONFIGURATION,
                UNUSABLE,
                REFUSED,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE, CHECKSUM])]),
        (SIGNALS, RUN_SIGNALS),
        (
            EXAMPLES,
            &[
                Part::Text("See it at work, with everything made for the occasion:"),
                Part::Commands("keygate demo"),
                Part::Text("Make a filter from keys that are known to be lost, and serve:"),
                Part::Commands(
                    "keygate filter create pwnedkeys.pkbf --entries 1000 --fp-rate 1e-9\n\
                     keygate filter add pwnedkeys.pkbf old-client.pem\n\
                     keygate validate --config keygate.toml\n\
                     keygate run --config keygate.toml",
                ),
            ],
        ),
    ],
    see_also: &[
        "keygate-run",
        "keygate-validate",
        "keygate-demo",
        "keygate-healthcheck",
        "keygate-report",
        "keygate-filter",
        "keygate-key",
        "keygate-completions",
    ],
};

const SIGNALS: &str = "SIGNALS";
const RUN_SIGNALS: &[Part] = &[Part::Terms(&[
    (
        "SIGTERM, SIGINT",
        "/readyz fails from now on, and connections are still accepted for `readiness_delay`. Then \
         the addresses are closed, and what is in flight has `drain_timeout` to end. A second one \
         ends the process at once.",
    ),
    (
        "SIGHUP",
        "Every file is looked at again at once, the configuration too. Without it, changes are \
         seen by watching the directories, and every ten seconds.",
    ),
])];

const RUN: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "ended by a signal"),
                ("2", "the configuration is wrong"),
                ("3", "a file that it names cannot be used"),
                REFUSED,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE, CHECKSUM])]),
        (SIGNALS, RUN_SIGNALS),
        (
            "ADMIN ADDRESS",
            &[
                Part::Text(
                    "HTTP on 127.0.0.1:9464 unless configured. Whoever reaches it can let filters \
                     through that wait: keep it on loopback or on a Unix socket.",
                ),
                Part::Terms(&[
                    ("/livez", "200 as long as the process answers."),
                    ("/readyz", "200 while it serves, 503 from SIGTERM on."),
                    ("/metrics", "For Prometheus."),
                    ("/status", "What is in use, and what became of the last change of each file."),
                ]),
            ],
        ),
    ],
    see_also: &["keygate", "keygate-validate", "keygate-healthcheck", "keygate-filter-accept"],
};

const VALIDATE: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "everything that `keygate run` would load can be used"),
                ("2", "the configuration is wrong"),
                ("3", "a file that it names cannot be used"),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE, CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate validate --config keygate.toml")]),
    ],
    see_also: &["keygate", "keygate-run"],
};

const DEMO: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the one client was admitted and the other refused"),
                USAGE,
                ("4", "it was not so, or the system refuses"),
            ])],
        ),
        (EXAMPLES, &[Part::Commands("keygate demo --once")]),
    ],
    see_also: &["keygate", "keygate-run"],
};

const HEALTHCHECK: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "ready"),
                (
                    "1",
                    "not ready: nobody listens, there is no answer in time, or the proxy is told \
                     to end",
                ),
                (
                    "2",
                    "wrong usage, or a configuration that cannot be read or does not tell the \
                     admin address",
                ),
                ("4", "the system refuses"),
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE])]),
        (EXAMPLES, &[Part::Commands("keygate healthcheck --config keygate.toml --timeout 500ms")]),
    ],
    see_also: &["keygate", "keygate-run"],
};

const REPORT: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "done, whoever is in it"),
                (
                    "2",
                    "wrong usage, or a configuration that cannot be read or does not tell the \
                     admin address",
                ),
                ("3", "no proxy answers, or its answer is no report"),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE])]),
        (EXAMPLES, &[Part::Commands("keygate report --config keygate.toml --since 24h --json")]),
    ],
    see_also: &["keygate", "keygate-run"],
};

const KEY: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "done"),
                USAGE,
                ("3", "an input cannot be used: it is named, and the others are shown"),
                UNWRITTEN,
            ])],
        ),
        (EXAMPLES, &[Part::Commands("keygate key --json old-client.pem")]),
    ],
    see_also: &["keygate", "keygate-filter-query"],
};

const COMPLETIONS: Page = Page {
    synopsis: None,
    sections: &[
        (EXIT, &[Part::Terms(&[("0", "done"), USAGE, UNWRITTEN])]),
        (
            EXAMPLES,
            &[
                Part::Text("For this shell, where it is bash:"),
                Part::Commands("source <(keygate completions bash)"),
            ],
        ),
    ],
    see_also: &["keygate"],
};
