//! keygate-core: checks public keys against lists of compromised keys.
//!
//! The library of the reverse proxy keygate. It has no async runtime, no HTTP and no command line.
//! Each module uses only modules above it in this table:
//!
//! | module | contents |
//! | --- | --- |
//! | [`json`] | parsing of JSON, with errors that name the member |
//! | [`regular_file`] | opening and reading regular files up to a maximum size |
//! | [`unix_time`] | times in seconds since the Unix epoch |
//! | [`printable`] | characters that a terminal must not get |
//! | [`pkbf`] | the `pkbfv1` filter: query, insert, reading, atomic writing |
//! | [`spki`] | public keys in certificates and files, their related encodings, fingerprints |
//! | [`badkeys`] | the badkeys blocklist: reading and look-up |
//! | [`signature`] | minisign signatures of files |
//! | [`jws`] | signatures of JOSE with a private key |
//! | [`proof`] | proofs of compromise: statements signed with the compromised key |
//! | [`guard`] | verdicts and decisions: [`guard::Guard::judge`] and [`guard::Policy::decide`] |
//! | [`tls`] | [`tls::KeyVerifier`] for any rustls server, sessions, the identity of a client |
//!
//! The feature `key-stores` reads keys in PKCS #12 files. It is off by default.

pub mod badkeys;
pub mod guard;
pub mod json;
pub mod jws;
mod named;
pub mod pkbf;
pub mod printable;
pub mod proof;
pub mod regular_file;
pub mod signature;
pub mod spki;
pub mod tls;
pub mod unix_time;
