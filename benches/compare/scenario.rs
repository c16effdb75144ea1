//! The rows of the comparison: loads with one unit of work, and idle connections.

use std::fmt;

use clap::ValueEnum;
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use super::harness::origin::MEBIBYTE;

/// A load with one unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Full TLS 1.2 handshake, one GET, close.
    HandshakeTls12,
    /// Full TLS 1.3 handshake, one GET, close.
    HandshakeTls13,
    /// The same over TLS 1.3 with a certificate that the proxy has not seen.
    NewClientTls13,
    /// Resumed TLS 1.2 handshake, one GET, close.
    ResumedTls12,
    /// Resumed TLS 1.3 handshake, one GET, close.
    ResumedTls13,
    /// GET of 128 bytes on 32 open connections.
    Http1,
    /// The same over HTTP/2: 4 connections with 16 streams.
    Http2,
    /// 2,000 GET requests a second on 32 connections, for the latency of a proxy with time to
    /// spare.
    Rate,
    /// Response bodies of 1 MiB over HTTP/1.1, 8 connections.
    Download,
    /// Response bodies of 1 MiB over HTTP/2, 8 connections.
    DownloadHttp2,
    /// Request bodies of 1 MiB over HTTP/1.1, 8 connections.
    Upload,
    /// Request bodies of 1 MiB over HTTP/2, 8 connections.
    UploadHttp2,
}

impl Scenario {
    pub const ALL: [Self; 12] = [
        Self::HandshakeTls13,
        Self::NewClientTls13,
        Self::HandshakeTls12,
        Self::ResumedTls13,
        Self::ResumedTls12,
        Self::Http1,
        Self::Http2,
        Self::Rate,
        Self::Download,
        Self::Upload,
        Self::DownloadHttp2,
        Self::UploadHttp2,
    ];

    /// Units of work in one run. CPU time is counted in ticks of 10 ms, so that a run has to last.
    pub fn count(self) -> usize {
        match self {
            Self::HandshakeTls12 | Self::HandshakeTls13 | Self::NewClientTls13 => 3_000,
            Self::ResumedTls12 | Self::ResumedTls13 => 4_000,
            Self::Http1 | Self::Http2 => 40_000,
            Self::Rate => 6_000,
            Self::Download | Self::DownloadHttp2 | Self::Upload | Self::UploadHttp2 => 1_000,
        }
    }

    /// The unit of its figure.
    pub fn unit(self) -> &'static str {
        match self {
            Self::HandshakeTls12 | Self::HandshakeTls13 | Self::NewClientTls13 => "µs",
            Self::ResumedTls12 | Self::ResumedTls13 => "µs",
            Self::Http1 | Self::Http2 | Self::Rate => "µs",
            Self::Download | Self::DownloadHttp2 | Self::Upload | Self::UploadHttp2 => "µs/MiB",
        }
    }

    pub fn shape(self) -> Shape {
        let requests = |http2, connections, streams, path, body, rate| {
            Shape::Requests(Requests { http2, connections, streams, path, body, rate })
        };
        let handshakes = |version, clients| Shape::Handshakes(Handshakes { version, clients });
        match self {
            Self::HandshakeTls12 => handshakes(&TLS12, HandshakeClients::Same),
            Self::HandshakeTls13 => handshakes(&TLS13, HandshakeClients::Same),
            Self::NewClientTls13 => handshakes(&TLS13, HandshakeClients::New),
            Self::ResumedTls12 => handshakes(&TLS12, HandshakeClients::Resuming),
            Self::ResumedTls13 => handshakes(&TLS13, HandshakeClients::Resuming),
            Self::Http1 => requests(false, 32, 1, "/", 0, None),
            Self::Http2 => requests(true, 4, 16, "/", 0, None),
            Self::Rate => requests(false, 32, 1, "/", 0, Some(2_000)),
            Self::Download => requests(false, 8, 1, "/mebibyte", 0, None),
            Self::DownloadHttp2 => requests(true, 8, 1, "/mebibyte", 0, None),
            Self::Upload => requests(false, 8, 1, "/", MEBIBYTE, None),
            Self::UploadHttp2 => requests(true, 8, 1, "/", MEBIBYTE, None),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::HandshakeTls12 => "full TLS 1.2 handshake + GET",
            Self::HandshakeTls13 => "full TLS 1.3 handshake + GET",
            Self::NewClientTls13 => "full TLS 1.3, new client + GET",
            Self::ResumedTls12 => "resumed TLS 1.2 + GET",
            Self::ResumedTls13 => "resumed TLS 1.3 + GET",
            Self::Http1 => "HTTP/1.1 request",
            Self::Http2 => "HTTP/2 request",
            Self::Rate => "HTTP/1.1 request at 2,000/s",
            Self::Download => "download HTTP/1.1",
            Self::DownloadHttp2 => "download HTTP/2",
            Self::Upload => "upload HTTP/1.1",
            Self::UploadHttp2 => "upload HTTP/2",
        })
    }
}

/// How the units of a scenario are done.
pub enum Shape {
    Handshakes(Handshakes),
    Requests(Requests),
}

/// Each unit is a connection with one request.
#[derive(Debug, Clone, Copy)]
pub struct Handshakes {
    pub version: &'static SupportedProtocolVersion,
    pub clients: HandshakeClients,
}

/// The clients of the handshakes in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeClients {
    /// Each handshake has a certificate of its own.
    New,
    /// All have the same certificate, and resume sessions.
    Resuming,
    /// All have the same certificate.
    Same,
}

/// Each unit is a request on an open connection.
#[derive(Debug, Clone, Copy)]
pub struct Requests {
    pub http2: bool,
    pub connections: usize,
    /// Requests in flight on each connection.
    pub streams: usize,
    pub path: &'static str,
    /// Size of the request body.
    pub body: usize,
    /// Requests a second, on all connections together.
    pub rate: Option<u32>,
}

/// Connections that are open after one GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    Http1,
    Http2,
}

impl Idle {
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];
}

impl fmt::Display for Idle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Http1 => "idle HTTP/1.1 connection",
            Self::Http2 => "idle HTTP/2 connection",
        })
    }
}
