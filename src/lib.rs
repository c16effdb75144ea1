//! keygate: a TLS-terminating reverse proxy that checks the public key of every client's
//! certificate against filters of keys whose private halves are known to have leaked.
//!
//! The rooms of the house, from the ground up; each uses only those above it:
//!
//! | room | what it owns |
//! | --- | --- |
//! | [`pkbf`] | the `pkbfv1` filter: query, insert, reading, atomic writing |
//! | [`spki`] | public keys in certificates and files, their related encodings, fingerprints |
//! | [`guard`] | the judgement: [`guard::Guard::judge`] and [`guard::Policy::decide`] |
//! | [`metrics`] | every series, as typed handles |
//! | [`config`] | the configuration: typed, then checked once |
//! | [`sandbox`] | what the process may still do, held by the kernel |
//! | [`supervisor`] | what the service manager is told, and the watchdog |
//! | [`activation`] | listening sockets that the service manager hands over |
//! | [`tls`] | the client verifier, sessions, and who a client is |
//! | [`sightings`] | the clients that were refused or flagged, in bounded memory |
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

pub mod activation;
pub mod admin;
pub mod cli;
pub mod config;
pub mod guard;
pub mod metrics;
pub mod pkbf;
pub mod proxy;
pub mod sandbox;
pub mod server;
pub mod sightings;
pub mod snapshot;
pub mod spki;
pub mod supervisor;
pub mod tls;
