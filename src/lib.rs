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
//! [`pkbf`] and [`spki`] are of use without the proxy, and [`tls::KeyVerifier`] in any rustls
//! server.

pub mod admin;
pub mod cli;
pub mod config;
pub mod guard;
pub mod metrics;
pub mod pkbf;
pub mod process;
pub mod proxy;
pub mod recent_hits;
mod regular_file;
pub mod server;
pub mod snapshot;
pub mod spki;
pub mod tls;
mod unix_time;
