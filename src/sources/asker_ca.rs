//! The CAs of the peers that ask an authorizer, or read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::tls::TrustAnchors;

use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::load_errors::LoadErrors;
use super::private_key::ExposedKeyFile;
use super::service_file::ServiceFile;
use super::unit_files::UnitFiles;

impl UnitFiles for Option<Arc<TrustAnchors>> {
    const UNIT: CredentialUnit = CredentialUnit::AskerCa;

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        files.asker_ca.into_iter().map(Path::to_owned).collect()
    }

    fn read(files: CredentialFiles<'_>, _: &Self, _: SystemTime) -> Result<Self, LoadErrors> {
        let Some(path) = files.asker_ca else { return Ok(None) };
        let file = ServiceFile { files, key: "tls.client_ca", path };
        Ok(Some(Arc::new(file.trust_anchors(&file.read()?)?)))
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        &[]
    }
}
