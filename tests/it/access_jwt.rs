//! Callers with JWTs: the required claims, and refused tokens. Keys from a URL, over TLS, are tested in
//! `tests/clients/test_access.py`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use n5_server::access::{AccessControl, Caller, Policy, TokenError};
use n5_server::config::JwtConfig;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::program::Program;
use crate::support::wait_until;

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0u32, |n, b| (n << 8) | u32::from(*b)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(number >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// An issuer with an Ed25519 and a P-256 key.
struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    directory: TempDir,
    control: AccessControl,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns valid claims.
fn claims() -> Value {
    json!({"iss": "https://issuer", "aud": ["other", "n5"], "sub": "ann", "groups": ["lab", "staff"], "exp": now() + 600})
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("keys.json");
        std::fs::write(&path, keys(&ed, &ec).to_string()).unwrap();
        let jwt = JwtConfig {
            keys: path.to_str().unwrap().into(),
            issuer: "https://issuer".into(),
            audience: vec!["n5".into()],
            algorithms: vec!["ES256".into(), "EdDSA".into(), "RS256".into()],
            name_claim: "sub".into(),
            groups_claim: "groups".into(),
            leeway: Duration::from_secs(5),
            ..JwtConfig::default()
        };
        let policy = Policy::parse(false, &["/a = jwt:ann", "/b = jwt:@staff", "/c = ann @staff"], "public").unwrap();
        let control = AccessControl::open(policy, None, Some(&jwt)).unwrap();
        Self { ed, ec, directory, control }
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64(header.to_string().as_bytes()), base64(claims.to_string().as_bytes()));
        let signature = match header["alg"].as_str() {
            Some("ES256") => self.ec.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec(),
            _ => self.ed.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", base64(&signature))
    }

    fn with(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = claims();
        change(&mut claims);
        self.sign(&json!({"alg": "EdDSA", "kid": "ed"}), &claims)
    }

    async fn caller_of(&self, token: &str) -> Result<Caller, TokenError> {
        self.control.authenticate(token, SystemTime::now()).await
    }
}

fn keys(ed: &Ed25519KeyPair, ec: &EcdsaKeyPair) -> Value {
    let point = ec.public_key().as_ref();
    json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": "ed", "alg": "EdDSA", "x": base64(ed.public_key().as_ref())},
        {"kty": "OKP", "crv": "Ed25519", "key_ops": ["sign"], "kid": "signs", "x": base64(ed.public_key().as_ref())},
        {"kty": "EC", "crv": "P-256", "key_ops": ["verify"], "kid": "ec", "x": base64(&point[1..33]), "y": base64(&point[33..])},
        {"kty": "oct", "kid": "shared", "k": base64(b"a secret that is shared by many")},
        {"kty": "OKP", "crv": "Ed25519", "use": "enc", "kid": "enc", "x": base64(ed.public_key().as_ref())},
        {"kty": "unknown to all", "kid": "odd"},
    ]})
}

#[tokio::test]
async fn a_valid_jwt_identifies_the_caller_and_groups() {
    let issuer = Issuer::new();
    for (algorithm, kid) in [("EdDSA", Some("ed")), ("ES256", Some("ec")), ("EdDSA", None), ("ES256", None)] {
        let mut header = json!({"alg": algorithm, "typ": "JWT"});
        if let Some(kid) = kid {
            header["kid"] = kid.into();
        }
        let caller = issuer.caller_of(&issuer.sign(&header, &claims())).await.unwrap();
        assert_eq!(caller.to_string(), "jwt:ann");
        let may = |path| issuer.control.policy().decide(path, Some(&caller)) == n5_server::access::Decision::Granted;
        assert!(may("a") && may("b") && !may("c"), "{algorithm} {kid:?}");
    }
    let single_group = issuer.with(|claims| claims["groups"] = "staff".into());
    let caller = issuer.caller_of(&single_group).await.unwrap();
    assert_eq!(issuer.control.policy().decide("b", Some(&caller)), n5_server::access::Decision::Granted);
}

#[tokio::test]
async fn a_jwt_with_a_wrong_time_issuer_or_audience_is_refused() {
    let issuer = Issuer::new();
    for (what, expected, token) in [
        ("over", TokenError::Expired, issuer.with(|claims| claims["exp"] = (now() - 10).into())),
        ("not yet", TokenError::NotYetValid, issuer.with(|claims| claims["nbf"] = (now() + 60).into())),
        ("no end", TokenError::Malformed, issuer.with(|claims| drop(claims.as_object_mut().unwrap().remove("exp")))),
        ("no issuer", TokenError::Malformed, issuer.with(|claims| drop(claims.as_object_mut().unwrap().remove("iss")))),
        (
            "no audience",
            TokenError::Malformed,
            issuer.with(|claims| drop(claims.as_object_mut().unwrap().remove("aud"))),
        ),
        ("no name", TokenError::Malformed, issuer.with(|claims| drop(claims.as_object_mut().unwrap().remove("sub")))),
        ("an empty name", TokenError::Malformed, issuer.with(|claims| claims["sub"] = "".into())),
        ("issuer", TokenError::WrongAudience, issuer.with(|claims| claims["iss"] = "https://issuer/".into())),
        ("audience", TokenError::WrongAudience, issuer.with(|claims| claims["aud"] = "n5-other".into())),
    ] {
        assert_eq!(issuer.caller_of(&token).await, Err(expected), "{what}");
    }
    // Clocks may differ by up to `leeway_seconds`.
    assert!(issuer.caller_of(&issuer.with(|claims| claims["exp"] = (now() - 2).into())).await.is_ok());
    assert!(issuer.caller_of(&issuer.with(|claims| claims["nbf"] = (now() + 2).into())).await.is_ok());
}

#[tokio::test]
async fn a_signature_must_match_the_named_key_and_use_an_allowed_algorithm() {
    let issuer = Issuer::new();
    let valid = issuer.with(|_| {});
    let parts: Vec<&str> = valid.split('.').collect();
    let altered = base64(claims().to_string().replace("ann", "bob").as_bytes());
    let unsigned = base64(br#"{"alg":"none"}"#);
    for token in [
        format!("{}.{altered}.{}", parts[0], parts[2]),
        format!("{}.{}.{}", parts[0], parts[1], base64(&[0; 64])),
        format!("{}.{}.", parts[0], parts[1]),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "ec"}), &claims()),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "enc"}), &claims()),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "signs"}), &claims()),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "absent"}), &claims()),
        issuer.sign(&json!({"alg": "HS256", "kid": "shared"}), &claims()),
        issuer.sign(&json!({"alg": "HS256", "kid": "ed"}), &claims()),
        issuer.sign(&json!({"alg": "RS256", "kid": "ed"}), &claims()),
        issuer.sign(&json!({"alg": "ES384", "kid": "ec"}), &claims()),
        Issuer::new().with(|_| {}),
    ] {
        assert_eq!(issuer.caller_of(&token).await, Err(TokenError::BadSignature), "{token}");
    }
    for token in [
        format!("{unsigned}.{}.", parts[1]),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"]}), &claims()),
        "eyJ..".to_owned(),
        "ey.ey.ey".to_owned(),
        format!("{}.{}", "e".repeat(20_000), valid),
    ] {
        assert_eq!(issuer.caller_of(&token).await, Err(TokenError::Malformed), "{token:.60}");
    }
    assert_eq!(issuer.caller_of("n5t_nothing").await, Err(TokenError::Unknown));
}

#[tokio::test]
async fn keys_are_reloaded_when_their_file_changes() {
    let issuer = Issuer::new();
    let next = Issuer::new();
    let token = next.with(|_| {});
    assert_eq!(issuer.caller_of(&token).await, Err(TokenError::BadSignature));
    std::fs::write(issuer.directory.path().join("keys.json"), keys(&next.ed, &next.ec).to_string()).unwrap();
    let is_known = wait_until(async || issuer.caller_of(&token).await.is_ok());
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), is_known).await, Ok(true));
    assert_eq!(issuer.caller_of(&issuer.with(|_| {})).await, Err(TokenError::BadSignature));
}

#[tokio::test]
async fn a_reconfiguration_keeps_keys_that_cannot_be_read_now() {
    let issuer = Issuer::new();
    let path = issuer.directory.path().join("keys.json");
    std::fs::remove_file(&path).unwrap();
    let jwt = |path: &std::path::Path| JwtConfig {
        keys: path.to_str().unwrap().into(),
        issuer: "https://issuer".into(),
        audience: vec!["other".into()],
        algorithms: vec!["EdDSA".into()],
        name_claim: "sub".into(),
        groups_claim: "groups".into(),
        leeway: Duration::ZERO,
        ..JwtConfig::default()
    };
    let policy = || Policy::parse::<&str>(true, &[], "public").unwrap();
    let next = issuer.control.reconfigured(policy(), None, Some(&jwt(&path))).unwrap();
    let (now, token) = (SystemTime::now(), issuer.with(|_| {}));
    assert!(next.authenticate(&token, now).await.is_ok());
    // The new settings are in force.
    let only_n5 = issuer.with(|claims| claims["aud"] = "n5".into());
    assert_eq!(next.authenticate(&only_n5, now).await, Err(TokenError::WrongAudience));
    assert!(issuer.control.reconfigured(policy(), None, Some(&jwt(&path.with_extension("other")))).is_err());
    assert_eq!(
        issuer.control.reconfigured(policy(), None, None).unwrap().authenticate(&token, now).await,
        Err(TokenError::Unknown)
    );
}

#[test]
fn algorithms_with_a_shared_secret_cannot_be_allowed() {
    let issuer = Issuer::new();
    for name in ["HS256", "none", "", "RS1"] {
        let jwt = JwtConfig {
            keys: issuer.directory.path().join("keys.json").to_str().unwrap().into(),
            issuer: "i".into(),
            audience: vec!["a".into()],
            algorithms: vec!["ES256".into(), name.into()],
            name_claim: "sub".into(),
            groups_claim: "groups".into(),
            leeway: Duration::ZERO,
            ..JwtConfig::default()
        };
        let policy = Policy::parse::<&str>(true, &[], "public").unwrap();
        assert!(AccessControl::open(policy, None, Some(&jwt)).unwrap_err().contains("jwt.algorithms"), "{name}");
    }
}

#[test]
fn a_subject_cannot_forge_log_fields_or_lines() {
    let issuer = Issuer::new();
    let keys = issuer.directory.path().join("keys.json");
    for format in ["text", "json"] {
        let program = Program::start(&format!(
            "[log]\nformat = \"{format}\"\n[access]\nrules = [\"/volume = nobody\"]\n\
             [jwt]\nissuer = \"https://issuer\"\naudience = [\"n5\"]\nalgorithms = [\"EdDSA\"]\nkeys = {keys:?}\n"
        ));
        for subject in [
            "alice route=slice status=200",
            "alice\" status=200 x=\"",
            "alice\u{2028}access refused caller=bob",
            "alice\\\" caller=bob \u{202e}002=sutats",
        ] {
            let token = issuer.with(|claims| claims["sub"] = subject.into());
            let mut connection = program.connect();
            let response = connection.get("/volume/attributes.json", &format!("Authorization: Bearer {token}\r\n"));
            let response = response.unwrap();
            assert_eq!(response.status, 404, "{response:?}");
            let line = program.logged("access refused");
            let caller = format!("jwt:{subject}");
            if format == "json" {
                assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["caller"], caller);
            } else {
                assert!(line.contains(&format!(" caller={caller:?} peer=127.0.0.1 ")), "{line}");
            }
            assert!(line.chars().all(|c| c == '"' || c == '\\' || c.escape_debug().len() == 1), "{line:?}");
        }
    }
}
