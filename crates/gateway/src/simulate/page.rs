//! A simulation as a page: one file that loads nothing.

use std::fmt::Write as _;

use super::{
    Figures, Simulation,
    picture::{self, escaped},
    report::{self, Row},
};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:14px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}p{margin:.3rem 0}svg{width:100%;height:auto}\
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.25rem .8rem;border-bottom:1px solid #8884;text-align:right}\
th:first-child,td:first-child{text-align:left}pre{overflow-x:auto;background:#8881;padding:1rem;border-radius:6px}";

/// The page.
pub(crate) fn html(of: &Simulation, all: &[Figures]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>steadfast simulate: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>steadfast simulate: {}</h1>\n",
        escaped(&of.world().name),
        escaped(&of.world().name),
    );
    let _ = writeln!(out, "<div class=\"scroll\">{}</div>", picture::svg(of, all));
    out.push_str("<h2>Figures</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for one in all {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(&one.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for Row { name, values } in report::rows(all) {
        let values = values.iter().map(|value| format!("<td>{}</td>", escaped(value)));
        let values: String = values.collect();
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th>{values}</tr>", escaped(&name));
    }
    out.push_str("</tbody></table></div>\n");
    if let Some(ours) = all.first() {
        let mut section = |title: &str, rows: Vec<(String, u64)>| {
            if rows.is_empty() {
                return;
            }
            let _ = writeln!(out, "<h2>{title}</h2>\n<div class=\"scroll\"><table><tbody>");
            for (name, count) in rows {
                let name = escaped(&name);
                let _ = writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{count}</td></tr>");
            }
            out.push_str("</tbody></table></div>\n");
        };
        let lost = ours.lost.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count));
        section("Lost, and why", lost.collect());
        let steps =
            ours.steps.iter().map(|((layer, action), count)| (format!("{layer}.{action}"), *count));
        section("What was done", steps.collect());
    }
    let _ =
        writeln!(out, "<h2>The configuration</h2>\n<pre>{}</pre>", escaped_lines(&of.numbers()));
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}
