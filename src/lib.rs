//! keygate: a TLS-terminating reverse proxy that checks the public key of every client's
//! certificate against filters of keys whose private halves are known to have leaked.
//!
//! The rooms of the house, from the ground up; each uses only those above it:
//!
//! | room | what it owns |
//! | --- | --- |
//! | `regular_file` | opening and reading regular files up to a maximum size |
//! | `unix_time` | times in seconds since the Unix epoch |
//! | [`pkbf`] | the `pkbfv1` filter: query, insert, reading, atomic writing |
//! | [`spki`] | public keys in certificates and files, their related encodings, fingerprints |
//! | [`guard`] | the judgement: [`guard::Guard::judge`] and [`guard::Policy::decide`] |
//! | [`config`] | the configuration: typed, then checked once |
//! | [`process`] | the process and its host: sandbox, service manager, inherited sockets |
//! | [`tls`] | the client verifier, sessions, and who a client is |
//! | [`metrics`] | every series, as typed handles |
//! | [`recent_hits`] | the clients rejected or flagged lately, in bounded memory |
//! | [`snapshot`] | what a reload can change, as one immutable value; watching, swapping |
//! | [`proxy`] | the data path: one file for each step of a connection's life |
//! | [`admin`] | metrics, liveness, readiness and status over HTTP |
//! | [`server`] | all of it in one process |
//! | [`cli`] | the command line: one file for each subcommand |
//!
//! A connection goes `accept` → ClientHello → service by SNI → handshake (chain, then proof of
//! possession, then [`guard::Guard::judge`]) → identity, judged again so that resumed sessions are
//! covered → HTTP. A changed file goes settle → load and check → swap of the
//! [`snapshot::Snapshot`]; with it go the ticket keys, so old sessions die.
//!
//! Without the feature `proxy`, which is on by default, the crate is a library: [`pkbf`], [`spki`],
//! [`guard`] and [`tls::KeyVerifier`], a client verifier for any rustls server. It then needs no
//! async runtime, no HTTP and no command line.

// The tour links to rooms that are not part of the library alone.
#![cfg_attr(not(feature = "proxy"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "proxy")]
pub mod admin;
#[cfg(feature = "proxy")]
pub mod cli;
#[cfg(feature = "proxy")]
pub mod config;
pub mod guard;
#[cfg(feature = "proxy")]
pub mod metrics;
pub mod pkbf;
#[cfg(feature = "proxy")]
pub mod process;
#[cfg(feature = "proxy")]
pub mod proxy;
#[cfg(feature = "proxy")]
pub mod recent_hits;
// Without the proxy, whole files are read by `pkbf` alone.
#[cfg_attr(not(feature = "proxy"), allow(dead_code))]
mod regular_file;
#[cfg(feature = "proxy")]
pub mod server;
#[cfg(feature = "proxy")]
pub mod snapshot;
pub mod spki;
pub mod tls;
#[cfg(feature = "proxy")]
mod unix_time;
