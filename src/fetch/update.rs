//! One run for one file: request, unpack, check, put in use.

use std::fs;

use data_encoding::HEXLOWER;
use keygate_core::badkeys::{MAX_METADATA_SIZE, Metadata, metadata_path};
use keygate_core::regular_file;

use super::blocklist::{NamedList, named_list};
use super::client::FetchClient;
use super::companion::Companion;
use super::download::{Downloaded, Received, Validators, download, download_small};
use super::error::{FetchError, SourceError, UnpackError};
use super::install::{NextVersion, sha256_of};
use super::job::{FetchJob, JobFile};
use super::outcome::FetchedFile;
use super::state::{FetchState, FileMark, Installed};
use super::unpack::{is_packed, unpack};
use super::work_directory::WorkDirectory;
use crate::config::SourceUrl;
use crate::resolver::Resolver;
use crate::sources::{check_crl_candidate, check_filter_candidate, check_list_candidate};

/// End of the name of a packed file. Its companions have the name without it.
const PACKED: &str = ".xz";

impl FetchJob {
    /// Fetches the file, if the source has another version.
    ///
    /// # Errors
    /// Returns an error if the file was not fetched: the one in use stays. A success that cannot be
    /// recorded is an error, because the next run would download the file again.
    pub async fn run(&self, resolver: &Resolver) -> Result<FetchedFile, FetchError> {
        let work = WorkDirectory::open(self.path())?;
        let mut state = work.state();
        let outcome = self.update(&work, &mut state, resolver).await;
        state.counts.record(&outcome);
        let saved = work.save(&state);
        outcome.and_then(|file| saved.map(|()| file))
    }

    /// Puts the version in use that the first source has whose version passes every check.
    async fn update(
        &self,
        work: &WorkDirectory,
        state: &mut FetchState,
        resolver: &Resolver,
    ) -> Result<FetchedFile, FetchError> {
        let mut result = update(self, work, state, resolver).await;
        let mut errors = Vec::new();
        for source in &self.alternatives {
            match result {
                Ok(_) => break,
                Err(error) => errors.push(error),
            }
            let job = Self { source: source.clone(), ..self.clone() };
            result = update(&job, work, state, resolver).await;
        }
        match result {
            Ok(file) => Ok(FetchedFile { errors, ..file }),
            Err(error) if errors.is_empty() => Err(error),
            Err(error) => {
                errors.push(error);
                Err(FetchError::Alternatives(errors))
            }
        }
    }
}

/// Puts the version at the source in use, unless it is.
async fn update(
    job: &FetchJob,
    work: &WorkDirectory,
    state: &mut FetchState,
    resolver: &Resolver,
) -> Result<FetchedFile, FetchError> {
    complete_earlier_run(job, work)?;
    let client = FetchClient::new(&job.source, resolver.clone())?;
    let run = Run { job, work, client };
    let known = state.installed.as_ref();
    let known = known.filter(|it| it.is_in_use(&job.source_id(), &job.files()));
    let known = known.map(|it| &it.validators);
    let version =
        if job.is_blocklist() { run.blocklist(known).await } else { run.file(known).await };
    let Version { next, validators, mut file } = version.inspect_err(|_| {
        let _ = fs::remove_dir_all(work.next()); // it is not complete
    })?;
    file.is_new = !next.is_in_use();
    let paths = next.installed_paths();
    // The keys of signatures may have changed, and then the files in use are no longer valid. CRLs
    // expire, and their CA may have been removed.
    if file.is_new || job.is_signed() || job.is_crl() {
        file.entries = Some(check(job, &next).inspect_err(|_| {
            let _ = next.remove(); // the error of the check is the cause
        })?);
    }
    if file.is_new {
        next.install()?;
    } else {
        next.remove()?;
    }
    let marks = paths.iter().map(|path| FileMark::read(path)).collect::<Result<_, _>>();
    // The next run requests a file without marks without conditions.
    state.installed =
        marks.ok().map(|files| Installed { source: job.source_id(), validators, files });
    Ok(file)
}

/// Puts a version in use that an earlier run has checked and not renamed completely. The source and
/// the checks come from the present configuration, which may be another one.
fn complete_earlier_run(job: &FetchJob, work: &WorkDirectory) -> Result<(), FetchError> {
    let next = NextVersion::from_earlier_run(work.next(), job.path(), &job.source_id());
    let Some(next) = next else { return Ok(()) };
    let paths = next.installed_paths();
    let has_all_files = job.files().iter().all(|file| paths.contains(file));
    if has_all_files && check(job, &next).is_ok() { next.install() } else { next.remove() }
}

/// Makes the checks of a reload. Returns the number of entries.
fn check(job: &FetchJob, next: &NextVersion) -> Result<u64, FetchError> {
    let (staged, url) = (next.file(), job.url());
    match &job.file {
        JobFile::Crl { path, config, .. } => check_crl_candidate(config, path, &staged)
            .map(|entries| entries as u64)
            .map_err(|source| SourceError::Crl(source).at(&job.source.url)),
        JobFile::Filter { config, state_dir, shrunk } => {
            let mut candidate = config.clone();
            candidate.path.clone_from(&staged);
            check_filter_candidate(&candidate, &config.path, state_dir.as_deref(), *shrunk)
                .map(|named| named.filter.header().entry_count.into())
                .map_err(|source| FetchError::Rejected { url, staged, source })
        }
        JobFile::List { config, shrunk } => {
            let mut candidate = config.clone();
            candidate.path.clone_from(&staged);
            check_list_candidate(&candidate, &config.path, *shrunk)
                .map(|list| list.len() as u64)
                .map_err(|source| FetchError::Rejected { url, staged, source })
        }
    }
}

/// One run for one file.
struct Run<'a> {
    job: &'a FetchJob,
    work: &'a WorkDirectory,
    client: FetchClient,
}

/// The version at the source, which has not been checked.
struct Version {
    next: NextVersion,
    validators: Validators,
    file: FetchedFile,
}

impl Run<'_> {
    fn empty_version(&self) -> Result<NextVersion, FetchError> {
        NextVersion::create(self.work.next(), self.job.path(), self.job.source_id())
    }

    /// The version of CRLs, of a filter or of a list of fingerprints. `known` are the validators of the file
    /// in use.
    async fn file(&self, known: Option<&Validators>) -> Result<Version, FetchError> {
        let url = &self.job.source.url;
        let part = self.work.part();
        let downloaded = download(&self.client, url, known, &part, self.job.max_size()).await?;
        let mut next = self.empty_version()?;
        let mut file = FetchedFile::default();
        self.add_companions(&mut next, url, self.job.companions(), &mut file).await?;
        let validators = match downloaded {
            Downloaded::NotModified => {
                next.keep_file()?;
                known.cloned().unwrap_or_default()
            }
            Downloaded::New(received, validators) => {
                file.add(received);
                self.take_part(&mut next, url)?;
                validators
            }
        };
        Ok(Version { next, validators, file })
    }

    /// The version of a blocklist with its metadata. `known` are the validators of the metadata in
    /// use.
    async fn blocklist(&self, known: Option<&Validators>) -> Result<Version, FetchError> {
        let (url, in_use) = (&self.job.source.url, metadata_path(self.job.path()));
        let mut file = FetchedFile::default();
        let answer = download_small(&self.client, url, known, MAX_METADATA_SIZE).await?;
        let (json, validators) = match answer {
            Downloaded::NotModified => {
                let json = regular_file::read(&in_use, MAX_METADATA_SIZE)
                    .map_err(FetchError::io(&in_use))?;
                (json, known.cloned().unwrap_or_default())
            }
            Downloaded::New(json, validators) => {
                file.bytes += json.len() as u64;
                (json, validators)
            }
        };
        let metadata =
            Metadata::parse(&json).map_err(|source| SourceError::Metadata(source).at(url))?;
        let list = named_list(url, &metadata)?;
        let is_in_use = sha256_of(self.job.path()).is_ok_and(|found| found == list.sha256);
        let part = self.work.part();
        if !is_in_use {
            let max_size = self.job.max_size();
            match download(&self.client, &list.url, None, &part, max_size).await? {
                Downloaded::New(received, _) => file.add(received),
                Downloaded::NotModified => {} // the request had no conditions
            }
        }
        let mut next = self.empty_version()?;
        self.add_companions(&mut next, &list.url, self.job.companions(), &mut file).await?;
        let of_metadata = self.job.companions_of_metadata();
        self.add_companions(&mut next, url, of_metadata, &mut file).await?;
        next.add_companion(&in_use, &json)?;
        if is_in_use {
            next.keep_file()?;
        } else {
            self.take_part(&mut next, &list.url)?;
            ensure_digest(&next, &list)?;
        }
        file.deprecation = metadata.is_deprecated.then_some(metadata.deprecation);
        Ok(Version { next, validators, file })
    }

    /// Requests the companions of the file at `url`.
    async fn add_companions(
        &self,
        next: &mut NextVersion,
        url: &SourceUrl,
        companions: Vec<Companion>,
        file: &mut FetchedFile,
    ) -> Result<(), FetchError> {
        let name = url.path.strip_suffix(PACKED).unwrap_or(&url.path);
        for companion in companions {
            let url = SourceUrl { path: format!("{name}{}", companion.suffix), ..url.clone() };
            let response = download_small(&self.client, &url, None, companion.max_size).await;
            if let Downloaded::New(content, _) = response.map_err(|it| companion.error(it))? {
                file.bytes += content.len() as u64;
                next.add_companion(&companion.path, &content)?;
            }
        }
        Ok(())
    }

    /// Moves the file that was downloaded from `url` into the next version; unpacks it if needed.
    fn take_part(&self, next: &mut NextVersion, url: &SourceUrl) -> Result<(), FetchError> {
        let part = self.work.part();
        let failed = FetchError::io(&part.path);
        if !self.job.is_crl() && is_packed(&part.path).map_err(&failed)? {
            let unpacked = unpack(&part.path, &next.file(), self.job.max_size().bytes, url);
            part.remove();
            unpacked?;
        } else if !self.job.is_crl() && url.path.ends_with(PACKED) {
            part.remove();
            return Err(SourceError::Unpack(UnpackError::NotPacked).at(url));
        } else {
            fs::rename(&part.path, next.file()).map_err(&failed)?;
            part.remove();
        }
        next.add_file()
    }
}

impl FetchedFile {
    fn add(&mut self, received: Received) {
        self.bytes = self.bytes.saturating_add(received.bytes);
        self.resumed = self.resumed.saturating_add(received.resumed);
    }
}

/// Checks that the unpacked blocklist is the one that the metadata name.
fn ensure_digest(next: &NextVersion, list: &NamedList) -> Result<(), FetchError> {
    let path = next.file();
    let found = sha256_of(&path).map_err(FetchError::io(&path))?;
    if found == list.sha256 {
        return Ok(());
    }
    let [expected, found] = [list.sha256, found].map(|sha256| HEXLOWER.encode(&sha256));
    Err(SourceError::Digest { expected, found }.at(&list.url))
}
