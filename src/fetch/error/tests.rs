use std::time::Duration;

use keygate_core::badkeys::Metadata;
use keygate_core::tls::FileContent;

use super::*;
use crate::http_client::ExchangeError;

/// Whether an action follows the problem, or the next run mends it.
fn has_action(text: &str) -> bool {
    const ACTIONS: [&str; 18] = [
        "check the network",
        "correct",
        "create",
        "fetch",
        "find",
        "give",
        "install",
        "let",
        "look for",
        "make",
        "mount",
        "raise",
        "remove",
        "run",
        "set",
        "the next run",
        "try again later",
        "wait until",
    ];
    ACTIONS.iter().any(|action| text.contains(&format!("; {action}")))
}

fn transfer_errors() -> Vec<TransferError> {
    let (text, second) = (|| "a".to_owned(), Duration::from_secs(1));
    let status = TransferError::Status;
    let denied = || io::Error::from_raw_os_error(libc::EACCES);
    vec![
        TransferError::BadRange(text()),
        TransferError::ConnectTimeout(second),
        TransferError::Encoded,
        ExchangeError::HeadTooLarge.into(),
        TransferError::NoLength,
        TransferError::Redirect { status: StatusCode::FOUND, location: text() },
        TransferError::Redirects(5),
        TransferError::Stalled(second),
        status(StatusCode::NOT_FOUND),
        status(StatusCode::FORBIDDEN),
        status(StatusCode::TOO_MANY_REQUESTS),
        TransferError::TimedOut(second),
        ExchangeError::Tls(text()).into(),
        TransferError::TooLarge { max: 1, is_max_size: true },
        TransferError::TooLarge { max: 1, is_max_size: false },
        TransferError::Truncated { received: 1, reason: text() },
        ExchangeError::Unreachable(text()).into(),
        ExchangeError::Unresolved(text()).into(),
        TransferError::Write { path: "/keygate/file".into(), source: denied() },
    ]
}

fn io_errors() -> Vec<io::Error> {
    let large = regular_file::too_large(2, 1);
    let codes = [libc::EACCES, libc::ENOENT, libc::ENOSPC, libc::ENOTDIR, libc::EROFS];
    codes.map(io::Error::from_raw_os_error).into_iter().chain([large]).collect()
}

#[test]
fn every_error_names_the_url_or_the_file_and_an_action() {
    let (url, path) = (|| "https://a.example/b".to_owned(), || PathBuf::from("/keygate/file"));
    let text = || "a".to_owned();
    let unpack = [
        UnpackError::Damaged(io::ErrorKind::InvalidData.into()),
        UnpackError::NotPacked,
        UnpackError::TooLarge(1),
        UnpackError::Truncated,
    ];
    let (updated, source) = (1, FileRejection::Emptied { entries: 1 });
    let (status, remedy) = (StatusCode::NOT_FOUND, "publish it");
    let own = [
        FetchError::Busy(path()),
        FetchError::ForeignDirectory { path: path(), owner: 1, user: 0 },
        FetchError::ForeignDirectory { path: path(), owner: 0, user: 1 },
        FetchError::Identity {
            path: path(),
            source: TlsFileError::NoCertificate(FileContent::Empty),
        },
        FetchError::NotRegular(path()),
        FetchError::TrustAnchors {
            path: path(),
            source: TlsFileError::NoCertificate(FileContent::Empty),
        },
        FetchError::Rejected {
            url: url(),
            staged: path(),
            source: FileRejection::Future { updated },
        },
    ];
    let of_source = [
        SourceError::BlocklistUrl(text()),
        SourceError::Digest { expected: text(), found: text() },
        SourceError::Metadata(Metadata::parse(b"{}").unwrap_err()),
        SourceError::NoDigest,
        SourceError::Retired(text()),
    ];
    let of_source = of_source.into_iter().chain(unpack.map(SourceError::Unpack));
    let of_source = of_source.chain(transfer_errors().into_iter().map(SourceError::Transfer));
    let at_source = |source| FetchError::Source { url: url(), source };
    let files = io_errors().into_iter().map(|source| FetchError::Io { path: path(), source });
    for error in of_source.map(at_source).chain(files).chain(own) {
        let text = error.to_string();
        assert!(text.contains("a.example") || text.contains("/keygate/file: "), "{text}");
        assert!(has_action(&text), "{text}");
        assert!(!text.contains("os error"), "{text}");
    }
    // These actions come from elsewhere.
    let companion = at_source(SourceError::NoCompanion { status, remedy }).to_string();
    assert!(companion.ends_with("; publish it"), "{companion}");
    let list = FetchError::Rejected { url: url(), staged: path(), source }.to_string();
    assert!(list.contains("rejected: ") && list.contains(": write a comment"), "{list}");
    let anchors = FetchError::NoSystemTrustAnchors.to_string();
    assert!(has_action(&anchors), "{anchors}");
}
