//! Tests that drive the real proxy over real TLS. One binary, so that the support code is compiled
//! and linked once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::string_slice,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test fails where it stands"
)]

#[path = "../support/mod.rs"]
mod support;

mod admission {
    mod actions;
    mod alerts;
    mod blocklists;
    pub(crate) mod bound_cas;
    mod bound_cas_files;
    mod cas;
    mod clients;
    mod encodings;
    mod held;
    mod held_ends;
    mod held_matrix;
    mod key_exchange;
    mod large_chains;
    mod lists;
    mod matrix;
    mod ml_dsa;
    mod names;
    mod open_connections;
    mod openssl_sessions;
    mod paths;
    mod policy;
    mod revocation;
    mod revocation_files;
    mod revocation_points;
    mod revocation_updates;
    mod server_auth;
    mod sessions;
    mod shared_tickets;
    mod two_certificates;
    mod weak_keys;
}

mod authorizers {
    mod asker_tls;
    mod askers;
    mod assertion;
    mod bound_cas;
    mod caddy;
    mod configuration;
    mod connections;
    mod envoy;
    mod envoy_control_planes;
    mod envoy_header;
    mod envoy_http;
    mod envoy_network;
    mod envoy_resets;
    mod grpc;
    mod haproxy;
    mod http;
    mod http_hosts;
    mod limits;
    mod nginx;
    mod questions;
    mod reload;
    mod reviewed_secrets;
    mod reviews;
    mod spop;
    mod step_ca;
    mod step_ca_webhooks;
    mod traefik;
    mod upgrades;
    mod verification;
}

mod cli {
    mod bench;
    mod commands;
    mod config;
    mod confirm;
    mod demo;
    mod evidence;
    mod filter;
    mod filter_query;
    mod inputs;
    mod key_files;
    mod key_stores;
    mod list_create;
    mod lists;
    mod ml_dsa;
    mod packaging;
    mod probe;
    mod proofs;
    mod reports;
    mod revoke;
    mod shared_primes;
    mod status;
    mod validate;
    mod weak_keys;
}

mod confirm {
    mod answers;
    mod mirror;
    mod schedule;
    mod sources;
}

mod docs {
    mod after_a_hit;
    mod checker;
    mod common_mistakes;
    mod examples;
    mod migrating;
    mod mistakes;
    mod operations;
    mod pages;
    mod readme;
    mod reference;
    mod words;
}

mod fetch {
    mod badkeys_scene;
    mod blocklists;
    mod checks;
    mod crls;
    mod directories;
    mod downloads;
    mod interrupted;
    mod network;
    mod scene;
    mod signed_blocklists;
}

mod fleet {
    mod balancer;
    mod examples;
    mod proofs;
    mod rings;
    mod simulation;
    mod store;
    mod view;
}

mod http {
    mod assertion;
    mod assertion_verifiers;
    mod cut_short;
    mod headers;
    mod hibernation;
    mod informational;
    mod limits;
    mod memory;
    mod protocols;
    mod smuggling;
    mod streams;
    mod timeouts;
    mod unfair_clients;
}

mod monitoring {
    mod access_log;
    mod admin;
    mod attention;
    mod log;
    mod prometheus;
    mod readers;
    mod rejections;
    mod shut_out;
    mod status_answers;
    mod status_browser;
    mod status_page;
    mod traces;
}

mod process {
    mod handover;
    mod healthcheck;
    mod sandbox;
    mod secrets;
    mod start;
    mod systemd;
    mod threads;
}

mod reload {
    mod client_files;
    mod configuration;
    mod dry_run;
    mod events;
    mod expiry;
    mod files;
    mod last_good;
    mod list_updates;
    mod marks;
    mod rejected_updates;
    mod renamed_services;
    mod several_files;
    mod signatures;
    mod state_lock;
    mod units;
    mod units_restart;
    mod unreadable;
}

mod tcp;

mod upstream {
    mod exchange;
    mod failures;
    mod http2;
    mod key_exchange;
    mod lengths;
    mod names;
    mod real_servers;
    mod servers;
    mod shared_connections;
    mod shares;
    mod short_chunks;
    mod tls;
    mod unprocessed_uploads;
}
