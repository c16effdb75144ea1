//! `keygate confirm`: asks a source of proofs about keys.

mod questions;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueHint;
use keygate_core::proof::form;
use keygate_core::spki::Fingerprint;
use serde::Serialize;
use tokio::runtime::Runtime;

use self::questions::{AskedKey, QuestionMaker};
use super::counted::counted;
use super::input::{self, FoundSubject};
use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, ConfigArgs, Exit, print_error, proof, resolver, runtime};
use crate::config::{CanaryConfig, Config, ConfirmConfig, SourceUrl};
use crate::confirm::{DirectAnswer, DirectSource, SourcePace};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = format!("{}; lines of `keygate report --json`, and bare fingerprints", input::HELP),
        value_hint = ValueHint::AnyPath
    )]
    inputs: Vec<String>,
    #[command(flatten)]
    passphrase: input::PassphraseArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Ask this source instead of the configuration's: the API or a mirror.
    #[arg(long, conflicts_with = "config", value_hint = ValueHint::Url)]
    url: Option<String>,
    /// Look into this directory of proofs first, instead of the configuration's.
    #[arg(long, value_name = "DIR", conflicts_with = "config", value_hint = ValueHint::DirPath)]
    proofs: Option<PathBuf>,
    /// CAs that may issue the certificate of an https:// source (PEM), with --url.
    #[arg(
        long,
        value_name = "FILE",
        requires = "url",
        default_value = "/etc/ssl/certs/ca-certificates.crt",
        value_hint = ValueHint::FilePath
    )]
    trust_anchors: PathBuf,
    /// File with the API key, with --url.
    #[arg(long, value_name = "FILE", requires = "url", value_hint = ValueHint::FilePath)]
    api_key: Option<PathBuf>,
    /// Keep each proof in this directory, as FINGERPRINT.jws.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    save: Option<PathBuf>,
    /// Print the questions and ask nothing.
    #[arg(long)]
    dry_run: bool,
    /// Ask also about keys that are in no filter.
    #[arg(long)]
    all: bool,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

/// A key and the answer about it.
#[derive(Serialize)]
struct ConfirmRow<'a> {
    input: &'a str,
    line: Option<u64>,
    /// `confirmed`, `cleared`, `probable`, or `unverified` for a fingerprint without a key.
    verdict: &'static str,
    /// The encoding that was asked about, or the one that the proof is for.
    fingerprint: String,
    encoding: Option<&'static str>,
    /// URL or file of the answer.
    source: String,
    /// Path of the proof that was kept.
    saved: Option<String>,
    /// The reason why there is no answer.
    error: Option<String>,
}

/// A question that `--dry-run` shows.
#[derive(Serialize)]
struct PlannedRow<'a> {
    input: &'a str,
    line: Option<u64>,
    fingerprint: String,
    encoding: Option<&'static str>,
    source: &'a str,
}

/// Maximum time for one question without a configuration, 5 s.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum pause for which the command waits if the source asks for one, 60 s.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Attempts at one question if the source asks for pauses.
const ATTEMPTS: u32 = 3;

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let QueriedSource { config, file, state_dir, questions } = source(args)?;
    if let Some(directory) = args.save.as_deref().filter(|_| !args.dry_run) {
        proof::check_directory(directory)?;
    }
    let source = DirectSource::new(&config, state_dir.as_deref(), resolver()?);
    let source = source.map_err(|error| match &file {
        Some(file) => CliError::start(file, error),
        None => error.into(),
    })?;
    let mut asker = Asker {
        args,
        name: source.name(),
        source,
        runtime: runtime()?,
        pace: config.url.map(|_| SourcePace::new(config.rate, Instant::now())),
        output: CliOutput::new(),
        counts: AnswerCounts::default(),
    };
    let counts =
        input::for_each_subject(&args.inputs, &args.passphrase, PerKeyOutput::Yes, |subject| {
            match subject {
                FoundSubject::Fingerprint { input, line, fingerprint } => {
                    asker.fetch((input, line), fingerprint)
                }
                FoundSubject::Key(key) => {
                    asker.ask((key.input, key.line), questions.ask(key.spki, None, args.all))
                }
                FoundSubject::Reported { is_open: false, .. } => Ok(()),
                FoundSubject::Reported { key, encoding, is_open: true } => {
                    let asked = questions.ask(key.spki, encoding.as_deref(), args.all);
                    asker.ask((key.input, key.line), asked)
                }
            }
        })?;
    asker.output.flush()?;
    let AnswerCounts { confirmed, unanswered, not_asked } = asker.counts;
    if not_asked > 0 {
        let keys = counted(not_asked, "key");
        print_error(&format_args!("{keys} in no filter of the source: not asked about"));
    }
    if confirmed > 0 {
        return Ok(Exit::Found);
    }
    Ok(counts.exit(if unanswered > 0 { Exit::Incomplete } else { Exit::Done }))
}

/// The source, and the filters that select the keys.
struct QueriedSource {
    config: ConfirmConfig,
    /// The configuration file with the source; `None` if the arguments give it.
    file: Option<PathBuf>,
    /// Has the proofs that the proxy has found.
    state_dir: Option<PathBuf>,
    questions: QuestionMaker,
}

fn source(args: &Args) -> Result<QueriedSource, CliError> {
    if args.url.is_none() && args.proofs.is_none() {
        let path = &args.config.path();
        let config = Config::read(path)?;
        let confirm = config.confirm.clone().ok_or_else(|| {
            let path = path.display();
            CliError::Usage(format!("{path} has no table [confirm]: give --url or --proofs"))
        })?;
        let questions = QuestionMaker::read(&config.filters, &confirm.filters)?;
        let (file, state_dir) = (Some(path.clone()), config.state.dir);
        return Ok(QueriedSource { config: confirm, file, state_dir, questions });
    }
    let parse = |text: &String| {
        SourceUrl::parse(text).ok_or_else(|| {
            let shown = SourceUrl::without_credentials(text);
            CliError::Usage(format!(
                "--url {shown:?} is not the URL of a source: write https://HOST"
            ))
        })
    };
    let url = args.url.as_ref().map(parse).transpose()?;
    let is_secure = url.as_ref().is_some_and(|url| url.is_secure);
    if args.api_key.is_some() && url.as_ref().is_some_and(|url| !url.is_authenticated()) {
        let problem = "--api-key would be sent to another machine in clear text: use https://";
        return Err(CliError::Usage(problem.to_owned()));
    }
    let config = ConfirmConfig {
        filters: Vec::new(),
        url,
        trust_anchors: is_secure.then(|| args.trust_anchors.clone()),
        api_key: args.api_key.clone(),
        proofs: args.proofs.clone(),
        directory_is_complete: false,
        canary: CanaryConfig::Published,
        wait: Duration::ZERO,
        timeout: TIMEOUT,
        cleared_ttl: Duration::ZERO,
        stale_for: Duration::ZERO,
        rate: 1,
    };
    Ok(QueriedSource { config, file: None, state_dir: None, questions: QuestionMaker::default() })
}

#[derive(Debug, Default)]
struct AnswerCounts {
    confirmed: u64,
    unanswered: u64,
    not_asked: u64,
}

struct Asker<'a> {
    args: &'a Args,
    source: DirectSource,
    name: String,
    runtime: Runtime,
    /// The pace of requests to the URL; `None` without one.
    pace: Option<SourcePace>,
    output: CliOutput,
    counts: AnswerCounts,
}

/// An input and a line in it.
type Place<'a> = (&'a str, Option<u64>);

impl Asker<'_> {
    fn ask(&mut self, place: Place<'_>, asked: AskedKey) -> Result<(), CliError> {
        let Some((first, first_name)) = asked.named().next() else {
            self.counts.not_asked += 1;
            return Ok(());
        };
        if self.args.dry_run {
            return asked.named().try_for_each(|(fingerprint, encoding)| {
                self.plan(place, fingerprint, Some(encoding))
            });
        }
        let answer = self.with_pauses(asked.encodings.len(), |asker| {
            asker.runtime.block_on(asker.source.query(&asked.encodings))
        });
        let mut row = self.row(place, first, "probable");
        row.encoding = Some(first_name);
        match answer {
            DirectAnswer::Confirmed { fingerprint, body, file } => {
                self.counts.confirmed += 1;
                row.verdict = "confirmed";
                row.fingerprint = fingerprint.to_string();
                row.encoding = asked.name_of(&fingerprint);
                row.saved = self.save(fingerprint, &body)?;
                if let Some(file) = file {
                    row.source = file.display().to_string();
                }
            }
            DirectAnswer::RateLimited(pause) => row.error = Some(rate_limited(pause)),
            DirectAnswer::Unanswered(error) => row.error = Some(error),
            DirectAnswer::UnknownForCertain if !asked.is_in_other_filter => {
                row.verdict = "cleared";
            }
            DirectAnswer::Unknown | DirectAnswer::UnknownForCertain => {}
        }
        self.show(&row)
    }

    /// Fetches the proof for a fingerprint. Without the key, its signature cannot be verified.
    fn fetch(&mut self, place: Place<'_>, fingerprint: Fingerprint) -> Result<(), CliError> {
        if self.args.dry_run {
            return self.plan(place, fingerprint, None);
        }
        let answer = self.with_pauses(1, |asker| {
            match asker.runtime.block_on(asker.source.fetch(&fingerprint)) {
                Ok(Some(body)) => DirectAnswer::Confirmed { fingerprint, body, file: None },
                Ok(None) => DirectAnswer::Unknown,
                Err(answer) => answer,
            }
        });
        let mut row = self.row(place, fingerprint, "unverified");
        row.error = Some(match answer {
            DirectAnswer::Confirmed { body, .. } => match form(&body) {
                Ok(kid) if kid == fingerprint => {
                    row.saved = self.save(fingerprint, &body)?;
                    "a proof that cannot be verified without the key".to_owned()
                }
                Ok(_) => "a proof of another key".to_owned(),
                Err(reason) => reason.to_string(),
            },
            DirectAnswer::RateLimited(pause) => rate_limited(pause),
            DirectAnswer::Unanswered(error) => error,
            DirectAnswer::Unknown | DirectAnswer::UnknownForCertain => {
                "not known to the source".to_owned()
            }
        });
        self.show(&row)
    }

    fn row<'a>(
        &self,
        (input, line): Place<'a>,
        fingerprint: Fingerprint,
        verdict: &'static str,
    ) -> ConfirmRow<'a> {
        let (fingerprint, source) = (fingerprint.to_string(), self.name.clone());
        let (encoding, saved, error) = (None, None, None);
        ConfirmRow { input, line, verdict, fingerprint, encoding, source, saved, error }
    }

    /// Sleeps until this number of requests may be sent to the URL.
    fn wait_for_turn(&mut self, requests: usize) {
        let Some(pace) = &mut self.pace else { return };
        let now = Instant::now();
        let opens_at = pace.opens_at(now);
        std::thread::sleep(opens_at.saturating_duration_since(now));
        pace.take_tokens(requests, opens_at);
    }

    /// Asks at the pace of the configuration, and again after a pause that the source asks for.
    fn with_pauses(
        &mut self,
        requests: usize,
        mut ask: impl FnMut(&Self) -> DirectAnswer,
    ) -> DirectAnswer {
        for _ in 1..ATTEMPTS {
            self.wait_for_turn(requests);
            let answer = ask(self);
            let DirectAnswer::RateLimited(pause) = answer else { return answer };
            if pause > MAX_PAUSE {
                return answer;
            }
            let seconds = pause.as_secs();
            print_error(&format_args!("{} asks for a pause of {seconds} s", self.name));
            std::thread::sleep(pause);
        }
        self.wait_for_turn(requests);
        ask(self)
    }

    fn save(&self, fingerprint: Fingerprint, body: &[u8]) -> Result<Option<String>, CliError> {
        let Some(directory) = &self.args.save else { return Ok(None) };
        let path = proof::write(directory, fingerprint, body)?;
        Ok(Some(path.display().to_string()))
    }

    fn show(&mut self, row: &ConfirmRow<'_>) -> Result<(), CliError> {
        self.counts.unanswered += u64::from(row.error.is_some());
        if self.args.json {
            return self.output.json(row);
        }
        let ConfirmRow { verdict, fingerprint, source, .. } = row;
        let position = input::position(row.input, row.line);
        let encoding = row.encoding.unwrap_or("-");
        let error = row.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let line = format_args!("{verdict} {fingerprint} {encoding} {position} {source}{error}");
        self.output.line(line)
    }

    fn plan(
        &mut self,
        (input, line): Place<'_>,
        fingerprint: Fingerprint,
        encoding: Option<&'static str>,
    ) -> Result<(), CliError> {
        let fingerprint = fingerprint.to_string();
        if self.args.json {
            let source = &self.name;
            return self.output.json(&PlannedRow { input, line, fingerprint, encoding, source });
        }
        let position = input::position(input, line);
        let encoding = encoding.unwrap_or("-");
        self.output.line(format_args!("{}/{fingerprint} {encoding} {position}", self.name))
    }
}

fn rate_limited(pause: Duration) -> String {
    format!("429 Too Many Requests, again in {} s", pause.as_secs())
}
