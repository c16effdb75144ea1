//! keygate: a TLS-terminating reverse proxy that checks the keys of client certificates.
//!
//! The key of every client is looked up in filters of keys whose private halves have leaked.
//!
//! The modules. Each uses only modules above it in this table:
//!
//! | module | contents |
//! | --- | --- |
//! | `json` | parsing of JSON, with errors that name the member |
//! | `regular_file` | opening and reading regular files up to a maximum size |
//! | `unix_time` | times in seconds since the Unix epoch |
//! | `printable` | characters that a terminal must not get |
//! | `shell` | commands of keygate as text for a shell |
//! | `permit` | counts of what is open, and limits that may change |
//! | `keep_alive` | detection of TCP peers that have vanished |
//! | `lingering_close` | closing a connection without a reset |
//! | [`blocking`] | blocking calls on threads that exist from the start |
//! | [`log_writer`] | log lines between the threads and a reader that may stall |
//! | [`resolver`] | look-ups of host names on threads of their own |
//! | [`pkbf`] | the `pkbfv1` filter: query, insert, reading, atomic writing |
//! | [`spki`] | public keys in certificates and files, their related encodings, fingerprints |
//! | [`badkeys`] | the badkeys blocklist: reading and look-up |
//! | [`signature`] | minisign signatures of files |
//! | [`proof`] | proofs of compromise: statements signed with the compromised key |
//! | [`guard`] | verdicts and decisions: [`guard::Guard::judge`] and [`guard::Policy::decide`] |
//! | [`config`] | the configuration, parsed and checked once |
//! | [`process`] | the process and its host: sandbox, service manager, inherited sockets |
//! | [`tls`] | the client verifier, sessions and the identity of a client |
//! | `http_client` | one HTTP request over a connection of its own |
//! | `tls_stream` | TLS on the connection of a client, without buffers while it is idle |
//! | [`metrics`] | all metrics, as typed handles |
//! | [`recent_hits`] | recently rejected or flagged clients, in bounded memory |
//! | [`snapshot`] | the state that a reload can change, as one immutable value |
//! | [`confirm`] | questions to a source of proofs: whether a probably compromised key is compromised |
//! | [`traces`] | spans of sampled requests, exported over OTLP/HTTP |
//! | [`fetch`] | downloads of filters and lists for `keygate fetch` |
//! | `client_log` | log lines about rejected, flagged and failed clients, limited in rate |
//! | [`listen`] | listening sockets, one per worker and address |
//! | [`dialect`] | client certificates and addresses in header fields: writing and reading |
//! | [`proxy`] | the data path: the life of a connection |
//! | `ask` | authorizers: the questions of other proxies about their clients |
//! | [`workers`] | the worker threads, which serve `proxy` and `ask` |
//! | [`admin`] | metrics, liveness, readiness and status over HTTP |
//! | [`server`] | the whole proxy in one process |
//! | [`cli`] | the command line, one file for each subcommand |
//!
//! A connection takes these steps: `accept`, ClientHello, service by SNI, handshake, identity,
//! HTTP. The handshake verifies the chain and the proof of possession, then calls
//! [`guard::Guard::judge`]. The identity is judged again, because a resumed session has no
//! verification. A changed file settles, is loaded and checked, and becomes part of the next
//! [`snapshot::Snapshot`]. Each snapshot has new ticket keys, so that old sessions do not resume.
//!
//! Without the feature `proxy`, which is on by default, the crate is a library: [`pkbf`], [`spki`],
//! [`badkeys`], [`guard`] and [`tls::KeyVerifier`], a client verifier for any rustls server. It
//! then needs no async runtime, no HTTP and no command line.

// The tour links to modules of the feature `proxy`.
#![cfg_attr(not(feature = "proxy"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "proxy")]
pub mod admin;
#[cfg(feature = "proxy")]
#[doc(hidden)]
pub mod ask;
pub mod badkeys;
#[cfg(feature = "proxy")]
pub mod blocking;
#[cfg(feature = "proxy")]
pub mod cli;
#[cfg(feature = "proxy")]
mod client_log;
#[cfg(feature = "proxy")]
pub mod config;
#[cfg(feature = "proxy")]
pub mod confirm;
#[cfg(feature = "proxy")]
pub mod dialect;
#[cfg(feature = "proxy")]
pub mod fetch;
pub mod guard;
#[cfg(feature = "proxy")]
mod http_client;
// Without the proxy, JSON is read by `spki` alone.
#[cfg_attr(not(feature = "proxy"), allow(dead_code))]
mod json;
#[cfg(feature = "proxy")]
mod keep_alive;
#[cfg(feature = "proxy")]
mod lingering_close;
#[cfg(feature = "proxy")]
pub mod listen;
#[cfg(feature = "proxy")]
pub mod log_writer;
#[cfg(feature = "proxy")]
pub mod metrics;
#[cfg(feature = "proxy")]
mod permit;
pub mod pkbf;
#[cfg(feature = "proxy")]
mod printable;
#[cfg(feature = "proxy")]
pub mod process;
#[cfg(feature = "proxy")]
pub mod proof;
#[cfg(feature = "proxy")]
pub mod proxy;
#[cfg(feature = "proxy")]
pub mod recent_hits;
// Without the proxy, whole files are read by `pkbf` alone.
#[cfg_attr(not(feature = "proxy"), allow(dead_code))]
mod regular_file;
#[cfg(feature = "proxy")]
pub mod resolver;
#[cfg(feature = "proxy")]
pub mod server;
#[cfg(feature = "proxy")]
mod shell;
#[cfg(feature = "proxy")]
pub mod signature;
#[cfg(feature = "proxy")]
pub mod snapshot;
pub mod spki;
pub mod tls;
#[cfg(feature = "proxy")]
mod tls_stream;
#[cfg(feature = "proxy")]
pub mod traces;
#[cfg(feature = "proxy")]
mod unix_time;
#[cfg(feature = "proxy")]
pub mod workers;
