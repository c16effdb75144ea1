//! The certificates that a revocation list covers (RFC 5280, 5.2.5 and 6.3.3).

use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::{DistributionPointName, GeneralName};
use x509_cert::ext::pkix::{BasicConstraints, CrlDistributionPoints, IssuingDistributionPoint};

use super::error::CrlError;

/// The scope of a list with an `issuingDistributionPoint`. A list without one covers every
/// certificate of its issuer.
#[derive(Debug)]
pub(super) struct Scope {
    /// The names of the distribution point; `None` for every distribution point.
    names: Option<Vec<GeneralName>>,
    pub(super) only_user_certificates: bool,
    only_ca_certificates: bool,
}

impl Scope {
    /// Parses the value of the extension `issuingDistributionPoint`.
    ///
    /// # Errors
    /// Returns an error if the value is not valid DER, or if the list covers only some reasons,
    /// attribute certificates, certificates of other issuers, or a relative name.
    pub(super) fn parse(value: &[u8]) -> Result<Self, CrlError> {
        let point = IssuingDistributionPoint::from_der(value)?;
        if point.indirect_crl {
            return Err(CrlError::Indirect);
        }
        if point.only_some_reasons.is_some() {
            return Err(CrlError::OnlySomeReasons);
        }
        if point.only_contains_attribute_certs {
            return Err(CrlError::AttributeCertificates);
        }
        let names = match point.distribution_point {
            None => None,
            Some(DistributionPointName::FullName(names)) => Some(names),
            Some(DistributionPointName::NameRelativeToCRLIssuer(_)) => {
                return Err(CrlError::RelativeName);
            }
        };
        Ok(Self {
            names,
            only_user_certificates: point.only_contains_user_certs,
            only_ca_certificates: point.only_contains_ca_certs,
        })
    }

    /// Whether the list covers `certificate` of the same issuer.
    pub(super) fn covers(&self, certificate: &ScopedCertificate) -> bool {
        let is_in_group = match certificate.is_ca {
            true => !self.only_user_certificates,
            false => !self.only_ca_certificates,
        };
        let points = &certificate.distribution_points;
        is_in_group
            && self.names.as_ref().is_none_or(|names| names.iter().any(|it| points.contains(it)))
    }

    /// The distribution point as text; `None` for every distribution point.
    pub(super) fn distribution_point(&self) -> Option<String> {
        let names = self.names.as_ref()?.iter().map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => uri.to_string(),
            GeneralName::DirectoryName(name) => name.to_string(),
            GeneralName::DnsName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::IpAddress(_)
            | GeneralName::OtherName(_)
            | GeneralName::RegisteredId(_)
            | GeneralName::Rfc822Name(_) => "a name of another type".to_owned(),
        });
        Some(names.collect::<Vec<_>>().join(" "))
    }
}

/// The parts of a certificate that decide which lists cover it.
#[derive(Debug)]
pub(super) struct ScopedCertificate {
    is_ca: bool,
    distribution_points: Vec<GeneralName>,
}

impl ScopedCertificate {
    /// Parses a certificate in DER; `None` if it is not valid DER.
    ///
    /// A certificate without distribution points is covered as if its distribution point were the
    /// name of its issuer (RFC 5280, 6.3.3).
    pub(super) fn parse(certificate: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let certificate = certificate.tbs_certificate();
        let constraints = certificate.get_extension::<BasicConstraints>().ok()?;
        let points = certificate.get_extension::<CrlDistributionPoints>().ok()?;
        let distribution_points = match points {
            None => vec![GeneralName::DirectoryName(certificate.issuer().clone())],
            Some((_, CrlDistributionPoints(points))) => points
                .into_iter()
                .filter(|point| point.reasons.is_none() && point.crl_issuer.is_none())
                .filter_map(|point| match point.distribution_point {
                    Some(DistributionPointName::FullName(names)) => Some(names),
                    Some(DistributionPointName::NameRelativeToCRLIssuer(_)) | None => None,
                })
                .flatten()
                .collect(),
        };
        let is_ca = constraints.is_some_and(|(_, constraints)| constraints.ca);
        Some(Self { is_ca, distribution_points })
    }
}
