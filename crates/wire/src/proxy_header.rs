//! The PROXY protocol: the client's address, sent before its first byte. Read from trusted proxies,
//! written to upstreams of TCP services.
//!
//! Source: HAProxy's `proxy-protocol.txt`, versions 1 and 2.

use std::io;
use std::net::SocketAddr;

use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader, SslInfo, Tlv};
use rustls::{CommonState, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum length of a version 1 header, line end included, in bytes.
const MAX_V1: usize = 107;
/// Length of the fixed part of version 2: signature, command, family and length.
const V2_FIXED: usize = 16;
/// Maximum length of a version 2 header: the addresses and some TLVs. A longer one ends the
/// connection.
const MAX_V2: usize = 4096;

/// Reads the header at the start of a connection, and no byte after it. Returns the client's
/// address; `None` for a connection of the proxy itself (`LOCAL`, `UNKNOWN`).
///
/// # Errors
/// Returns an error if the header is malformed or too long, or if the connection fails.
pub async fn read<IO: AsyncRead + Unpin>(io: &mut IO) -> io::Result<Option<SocketAddr>> {
    let mut header = vec![io.read_u8().await?];
    if header == b"P" {
        // Byte by byte, because TLS follows the line.
        while !header.ends_with(b"\n") {
            if header.len() >= MAX_V1 {
                return Err(malformed("the line has no end"));
            }
            header.push(io.read_u8().await?);
        }
    } else {
        read_to(io, &mut header, V2_FIXED).await?;
        let length = header.last_chunk().map_or(0, |length| u16::from_be_bytes(*length));
        let whole = V2_FIXED + usize::from(length);
        if whole > MAX_V2 {
            return Err(malformed("longer than 4096 bytes"));
        }
        read_to(io, &mut header, whole).await?;
    }
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    let (parsed, _) =
        ProxyHeader::parse(&header, config).map_err(|error| malformed(&error.to_string()))?;
    Ok(parsed.proxied_address().map(|address| address.source))
}

async fn read_to<IO: AsyncRead + Unpin>(
    io: &mut IO,
    header: &mut Vec<u8>,
    length: usize,
) -> io::Result<()> {
    let left = length.saturating_sub(header.len());
    let mut rest = vec![0; left];
    io.read_exact(&mut rest).await?;
    header.extend(rest);
    Ok(())
}

fn malformed(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed PROXY header: {reason}"))
}

/// The TLV of the client certificate, inside the TLS TLV.
const SSL_CLIENT_CERT: u8 = 0x28;
/// Maximum length of a certificate in a header, which has room for 64 KiB. A longer one is omitted.
const MAX_CERTIFICATE: usize = 32 << 10;

/// The facts about a TLS client in a header for an upstream.
pub struct ProxiedClient<'a> {
    /// Address of the client.
    pub peer: SocketAddr,
    /// The address that the client connected to. The header has no addresses without it, or if the
    /// two are of different families.
    pub local: Option<SocketAddr>,
    /// Version and cipher suite.
    pub tls: &'a CommonState,
    /// SNI of the client.
    pub server_name: Option<&'a str>,
    /// DER of the client's certificate, which was verified, and its common name.
    pub certificate: Option<(&'a [u8], Option<String>)>,
}

/// Writes a version 2 header.
///
/// # Errors
/// Returns an error if the header would be too long.
pub fn write(client: ProxiedClient<'_>) -> io::Result<Vec<u8>> {
    let ProxiedClient { peer, local, tls, server_name, certificate } = client;
    let local = local.filter(|local| local.is_ipv4() == peer.is_ipv4());
    let addresses = local.map(|local| ProxiedAddress::stream(peer, local));
    let has_certificate = certificate.is_some();
    let result = u32::from(!has_certificate);
    let mut ssl = SslInfo::new(true, has_certificate, has_certificate, result);
    let is_13 = tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    ssl.append_tlv(Tlv::SslVersion(if is_13 { "TLSv1.3" } else { "TLSv1.2" }.into()));
    if let Some(suite) = tls.negotiated_cipher_suite() {
        let name = suite.suite().as_str().unwrap_or_default();
        ssl.append_tlv(Tlv::SslCipher(name.into()));
    }
    if let Some((der, common_name)) = certificate {
        if let Some(name) = common_name {
            ssl.append_tlv(Tlv::SslCn(name.into()));
        }
        if der.len() <= MAX_CERTIFICATE {
            ssl.append_tlv(Tlv::Custom(SSL_CLIENT_CERT, der.into()));
        }
    }
    let name = server_name.map(|name| Tlv::Authority(name.into()));
    let header = ProxyHeader::with_tlvs(addresses, name.into_iter().chain([Tlv::Ssl(ssl)]));
    let mut bytes = Vec::new();
    header.encode_v2(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(bytes: &[u8]) -> (io::Result<Option<SocketAddr>>, Vec<u8>) {
        let mut rest = bytes;
        let found = read(&mut rest).await;
        (found, rest.to_vec())
    }

    fn v2() -> Vec<u8> {
        let [source, destination] =
            ["192.0.2.1:4711", "192.0.2.2:443"].map(|it| it.parse().unwrap());
        let address = ProxiedAddress::stream(source, destination);
        let header = ProxyHeader::with_tlvs(Some(address), [Tlv::Authority("a.example".into())]);
        let mut bytes = Vec::new();
        header.encode_v2(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_header_of_either_version_is_read_and_no_byte_after_it() {
        let client: SocketAddr = "192.0.2.1:4711".parse().unwrap();
        for header in [v2(), b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 443\r\n".to_vec()] {
            let (found, rest) = read_all(&[header.as_slice(), b"\x16\x03"].concat()).await;
            assert_eq!(found.unwrap(), Some(client));
            assert_eq!(rest, b"\x16\x03");
        }
        let (found, rest) = read_all(b"PROXY UNKNOWN\r\n\x16").await;
        assert_eq!((found.unwrap(), rest), (None, b"\x16".to_vec()));
    }

    #[tokio::test]
    async fn a_malformed_header_is_an_error() {
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        let mut huge = v2();
        huge[14..16].copy_from_slice(&0xffff_u16.to_be_bytes());
        huge.resize(V2_FIXED + 0xffff, 0);
        let error = read_all(&huge).await.0.unwrap_err().to_string();
        assert!(error.ends_with("longer than 4096 bytes"), "{error}");
        for bytes in [
            &b""[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefgh",
            &long,
            b"PROXY TCP4 a b c d\r\n",
        ] {
            assert!(read_all(bytes).await.0.is_err(), "{bytes:?}");
        }
        let whole = v2();
        for length in 0..whole.len() {
            assert!(read_all(&whole[..length]).await.0.is_err(), "{length} bytes");
        }
    }
}
