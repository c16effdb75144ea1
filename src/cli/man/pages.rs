//! What the manual pages say besides what `--help` says.

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
        "keygate-filter" => FILTER,
        "keygate-filter-accept" => ACCEPT,
        "keygate-filter-add" => ADD,
        "keygate-filter-create" => CREATE,
        "keygate-filter-diff" => DIFF,
        "keygate-filter-info" => INFO,
        "keygate-filter-query" => QUERY,
        "keygate-healthcheck" => HEALTHCHECK,
        "keygate-key" => KEY,
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

const FILTER: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "done; `query`: nothing found; `diff`: the same"),
                ("1", "`query`: a key was found; `diff`: different"),
                USAGE,
                UNUSABLE,
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (
            "STANDARDS",
            &[Part::Text("The format of filter files: https://pwnedkeys.com/filter.html")],
        ),
    ],
    see_also: &[
        "keygate",
        "keygate-filter-accept",
        "keygate-filter-add",
        "keygate-filter-create",
        "keygate-filter-diff",
        "keygate-filter-info",
        "keygate-filter-query",
    ],
};

const ACCEPT: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the update is in use"),
                CONFIGURATION,
                ("3", "nothing waits, it cannot be used, or the proxy does not answer"),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CONFIGURATION_FILE])]),
        (EXAMPLES, &[Part::Commands("keygate filter accept pwnedkeys --config keygate.toml")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-run"],
};

const ADD: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "every key is in the filter"),
                USAGE,
                (
                    "3",
                    "the filter cannot be used, or an input cannot: it is named, and the keys of \
                     the others are in the filter",
                ),
                UNWRITTEN,
            ])],
        ),
        (
            FILES,
            &[Part::Terms(&[(
                "FILE.sha256",
                "A checksum that stands beside the filter is checked first, and written anew.",
            )])],
        ),
        (
            EXAMPLES,
            &[Part::Commands(
                "keygate filter add lost.pkbf leaked/ old-client.pem\n\
                 keygate filter add lost.pkbf - < authorized_keys",
            )],
        ),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-create"],
};

const CREATE: Page = Page {
    synopsis: Some(
        "keygate filter create FILE --entries N --fp-rate P [--force] [--json]\n\
         keygate filter create FILE --hash-count K --hash-length L [--force] [--json]",
    ),
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the filter is made"),
                ("2", "wrong usage, or numbers for which there is no filter"),
                ("3", "the file is there already, or cannot be written"),
                UNWRITTEN,
            ])],
        ),
        (
            EXAMPLES,
            &[Part::Commands("keygate filter create lost.pkbf --entries 10000 --fp-rate 1e-6")],
        ),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-add"],
};

const DIFF: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "the files are the same"),
                ("1", "they are not"),
                USAGE,
                UNUSABLE,
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter diff lost.pkbf next.pkbf clients/")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-info"],
};

const INFO: Page = Page {
    synopsis: None,
    sections: &[
        (EXIT, &[Part::Terms(&[("0", "done"), USAGE, UNUSABLE, UNWRITTEN])]),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter info --json lost.pkbf")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-filter-diff"],
};

const QUERY: Page = Page {
    synopsis: None,
    sections: &[
        (
            EXIT,
            &[Part::Terms(&[
                ("0", "no key is in the filter"),
                ("1", "a key is"),
                USAGE,
                (
                    "3",
                    "the filter cannot be used, or an input cannot: it is named, and the others \
                     are answered",
                ),
                UNWRITTEN,
            ])],
        ),
        (FILES, &[Part::Terms(&[CHECKSUM])]),
        (EXAMPLES, &[Part::Commands("keygate filter query lost.pkbf old-client.pem")]),
    ],
    see_also: &["keygate", "keygate-filter", "keygate-key"],
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
