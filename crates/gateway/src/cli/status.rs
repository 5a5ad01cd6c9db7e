//! `steadfast status`: how a running gateway is.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::{Exit, StatusArgs, operator::Operator, print, stop_signal};
use crate::escape;

/// How many requests are shown.
const SHOWN: usize = 8;

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

pub(super) fn run(args: &StatusArgs) -> Result<(), Exit> {
    let operator = Operator::of(&args.gateway)?;
    super::runtime().block_on(async {
        if !args.watch {
            let (status, requests) = asked(&operator).await?;
            let shown = if args.json {
                json!({ "status": status, "requests": requests["requests"] }).to_string()
            } else {
                picture(&status, &requests)
            };
            return Ok(print::result(shown.trim_end())?);
        }
        let every = Duration::from_secs(u64::from(args.every));
        let watch = async {
            loop {
                // One that is restarted comes back.
                let shown = match asked(&operator).await {
                    Ok((status, requests)) => picture(&status, &requests),
                    Err(Exit(1, why)) => why,
                    Err(wrong) => return Err(wrong),
                };
                print::result(format_args!("{CLEAR}{}", shown.trim_end()))?;
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            ended = watch => ended,
            () = stop_signal() => Ok(()),
        }
    })
}

async fn asked(operator: &Operator) -> Result<(Value, Value), Exit> {
    let missing =
        || Exit::failed("there is a server, and it is no steadfast gateway of this version");
    let status = operator.get("/admin/status").await?.ok_or_else(missing)?;
    let requests = operator.get(&format!("/admin/requests?limit={SHOWN}")).await?;
    Ok((status, requests.ok_or_else(missing)?))
}

fn text(value: &Value) -> String {
    escape::text(value.as_str().unwrap_or_default()).into_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// Seconds, as somebody says them.
fn seconds(value: &Value) -> Option<String> {
    let seconds = value.as_f64()?;
    Some(match seconds {
        3_600.0.. => format!("{:.1} h", seconds / 3_600.0),
        120.0.. => format!("{:.0} min", seconds / 60.0),
        _ => format!("{seconds:.0} s"),
    })
}

/// What became of requests in the last five minutes.
fn lately(of: &Value) -> String {
    let count = |name: &str| of[name].as_u64().unwrap_or(0);
    let answered = count("ok") + count("recovered");
    let first = &of["first_content_ms"];
    let first = match (first["p50"].as_f64(), first["p95"].as_f64()) {
        (Some(half), Some(most)) => {
            format!("; first content within {:.1} s, 95 % within {:.1} s", half / 1e3, most / 1e3)
        }
        _ => String::new(),
    };
    format!(
        "last 5 min   {answered} answered, {} of them recovered; {} lost; {} broken off by callers{first}; ${:.2}\n",
        count("recovered"),
        count("failed"),
        count("cancelled"),
        count("micro_dollars") as f64 / 1e6,
    )
}

fn picture(status: &Value, requests: &Value) -> String {
    let mut out = lately(&requests["last_5_min"]);
    for one in list(&status["attention"]) {
        let word = match one["severity"].as_str() {
            Some("bad") => "ACT",
            Some("warn") => "WATCH",
            _ => "note",
        };
        let _ = writeln!(out, "{word:<12} {}", text(&one["text"]));
    }
    for route in list(&status["routes"]) {
        let chain: Vec<String> = list(&route["chain"])
            .iter()
            .map(|link| match link {
                Value::String(name) => escape::text(name).into_owned(),
                other => text(&other["provider"]),
            })
            .collect();
        let _ = writeln!(out, "{:<12} {}", text(&route["name"]), chain.join(" -> "));
    }
    let (targets, limits) = (list(&status["targets"]), list(&status["rate_limits"]));
    let _ = writeln!(out, "\n{:<44} {:<10} {:<26} last error", "target", "state", "rests");
    for target in targets {
        let rests = &target["cooling"];
        let limit = limits.iter().find(|limit| limit["target"] == target["target"]);
        let blocked = limit.map(|limit| &limit["blocked_for_s"]);
        let rests =
            match (seconds(&rests["for_s"]), blocked.filter(|left| left.as_f64() > Some(0.0))) {
                _ if target["out"] == true => "taken out".to_owned(),
                (Some(left), _) => format!("{left}, {}", text(&rests["reason"])),
                (None, Some(left)) => format!("{}, its limit", seconds(left).unwrap_or_default()),
                (None, None) => String::new(),
            };
        let error = &target["last_error"];
        let error = match seconds(&error["ago_s"]) {
            Some(ago) => {
                format!("{} {ago} ago: {}", text(&error["reason"]), text(&error["message"]))
            }
            None => String::new(),
        };
        let error: String = error.chars().take(100).collect();
        let _ = writeln!(
            out,
            "{:<44} {:<10} {:<26} {error}",
            text(&target["target"]),
            text(&target["status"]),
            rests
        );
    }
    if targets.is_empty() {
        out.push_str("nobody has been asked yet\n");
    }
    for breaker in list(&status["breakers"]).iter().filter(|one| one["state"] != "closed") {
        let left = seconds(&breaker["for_s"]).map(|left| format!(" for {left}"));
        let state = text(&breaker["state"]);
        let _ = writeln!(
            out,
            "breaker of {} is {state}{}",
            text(&breaker["target"]),
            left.unwrap_or_default()
        );
    }
    let held = status["escalation"]["held"].as_array().map_or(0, Vec::len);
    if held > 0 {
        let _ = writeln!(out, "{held} requests are held for somebody's choice: /admin/escalations");
    }
    let retry = &status["retry"];
    let _ = writeln!(
        out,
        "\nattempts {}, retries {}, recovered by them {}, gave up {}; streams resumed {} of {}",
        status["attempts"],
        retry["retries"],
        retry["recovered"],
        retry["gave_up"],
        status["resume"]["resumed"],
        status["resume"]["broken"]
    );
    let _ =
        writeln!(out, "\n{} under way, {} remembered", requests["running"], requests["remembered"]);
    out.push_str(&super::why::list(requests));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_who_rests_and_why_and_no_control_characters() {
        let status = json!({
            "routes": [{"name": "default", "chain": ["openai", "anthropic"]}],
            "targets": [{
                "target": "openai/gpt-4o#KEY", "status": "cooling",
                "cooling": {"reason": "rate_limit", "for_s": 59.6},
                "last_error": {"reason": "rate_limit", "message": "slow \u{1b}[2Jdown", "ago_s": 7_200},
            }, {"target": "anthropic", "status": "degraded"},
            {"target": "google", "status": "healthy", "out": true, "cooling": {"reason": "cooling", "for_s": 3e8}}],
            "attention": [{"severity": "bad", "text": "openai refuses \u{1b}our key."}],
            "rate_limits": [{"target": "anthropic", "blocked_for_s": 12.4}],
            "breakers": [{"target": "openai", "state": "open", "for_s": 130}, {"target": "x", "state": "closed"}],
            "escalation": {"held": [{}]}, "attempts": 3,
            "retry": {"retries": 1, "recovered": 1, "gave_up": 0},
            "resume": {"broken": 0, "resumed": 0},
        });
        let lately = json!({
            "ok": 40, "recovered": 2, "failed": 1, "cancelled": 3, "micro_dollars": 1_234_000,
            "first_content_ms": {"p50": 400.0, "p95": 2_300.0},
        });
        let requests = json!({"running": 0, "remembered": 0, "last_5_min": lately, "requests": []});
        let shown = picture(&status, &requests);
        for part in [
            "42 answered, 2 of them recovered; 1 lost; 3 broken off",
            "within 0.4 s, 95 % within 2.3 s; $1.23",
            "openai -> anthropic",
            "60 s, rate_limit",
            "12 s, its limit",
            "taken out",
            "ACT          openai refuses \\u{1b}our key.\n",
            "2.0 h ago: slow \\u{1b}[2Jdown",
            "breaker of openai is open for 2 min",
            "1 requests are held",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains('\u{1b}') && !shown.contains("of x"), "{shown}");
    }
}
