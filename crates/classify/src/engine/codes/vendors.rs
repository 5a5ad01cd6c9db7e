//! Numbers that mean something at one vendor only.

use steadfast_core::Reason;

use super::{
    Twist::{self, Long, Permanent, Plain},
    Weight::{self, Final, Firm, Hint},
};

/// The vendor's spellings, then its codes.
pub(super) struct Vendor(
    pub(super) &'static [&'static str],
    pub(super) &'static [(&'static str, Reason, Weight, Twist)],
);

pub(super) const VENDORS: &[Vendor] = &[
    // docs.bigmodel.cn, docs.z.ai.
    Vendor(
        &["zai", "z.ai", "z-ai", "zhipu", "bigmodel", "glm"],
        &[
            ("1000", Reason::Auth, Firm, Plain),
            ("1001", Reason::Auth, Firm, Plain),
            ("1002", Reason::Auth, Firm, Plain),
            ("1003", Reason::Auth, Firm, Plain),
            ("1004", Reason::Auth, Firm, Plain),
            ("1110", Reason::Auth, Firm, Plain),
            ("1111", Reason::Auth, Firm, Plain),
            ("1112", Reason::Auth, Firm, Permanent),
            ("1121", Reason::Auth, Firm, Permanent),
            ("1113", Reason::Billing, Final, Plain),
            ("1309", Reason::Billing, Final, Plain),
            ("1200", Reason::ServerError, Hint, Plain),
            ("1230", Reason::ServerError, Firm, Plain),
            ("1234", Reason::ServerError, Firm, Plain),
            // The general parameter error, also said of an overflow: words decide.
            ("1210", Reason::Format, Hint, Plain),
            ("1213", Reason::Format, Hint, Plain),
            ("1214", Reason::Format, Hint, Plain),
            ("1215", Reason::Format, Hint, Plain),
            ("1211", Reason::ModelNotFound, Final, Plain),
            ("1311", Reason::ModelNotFound, Final, Plain),
            ("1212", Reason::Unsupported, Firm, Plain),
            ("1220", Reason::Auth, Firm, Plain),
            ("1221", Reason::ModelNotFound, Firm, Plain),
            ("1222", Reason::ModelNotFound, Firm, Plain),
            ("1261", Reason::ContextOverflow, Final, Plain),
            ("1301", Reason::ContentFilter, Final, Plain),
            ("1302", Reason::RateLimit, Firm, Plain),
            ("1303", Reason::RateLimit, Firm, Plain),
            ("1304", Reason::RateLimit, Firm, Long),
            ("1308", Reason::RateLimit, Firm, Long),
            ("1310", Reason::RateLimit, Firm, Long),
            ("1313", Reason::RateLimit, Firm, Long),
            ("1305", Reason::Overloaded, Hint, Plain),
            ("1312", Reason::Overloaded, Firm, Plain),
        ],
    ),
    // platform.minimax.io, as `base_resp.status_code` or in brackets at the end of a message.
    Vendor(
        &["minimax"],
        &[
            ("1000", Reason::ServerError, Hint, Plain),
            ("1001", Reason::Timeout, Firm, Plain),
            ("1002", Reason::RateLimit, Firm, Plain),
            ("1004", Reason::Auth, Firm, Plain),
            ("1008", Reason::Billing, Final, Plain),
            ("1013", Reason::ServerError, Hint, Plain),
            ("1024", Reason::ServerError, Hint, Plain),
            ("1026", Reason::ContentFilter, Final, Plain),
            ("1027", Reason::ContentFilter, Final, Plain),
            ("1033", Reason::ServerError, Hint, Plain),
            ("1039", Reason::RateLimit, Firm, Plain),
            ("1041", Reason::RateLimit, Firm, Plain),
            ("2013", Reason::Format, Hint, Plain),
            ("2045", Reason::RateLimit, Firm, Plain),
            ("2049", Reason::Auth, Firm, Plain),
            ("2056", Reason::RateLimit, Firm, Long),
        ],
    ),
    // developers.cloudflare.com/workers-ai/platform/errors.
    Vendor(
        &["cloudflare", "workers-ai", "workersai"],
        &[
            ("3003", Reason::Format, Firm, Plain),
            ("5004", Reason::Format, Firm, Plain),
            ("5005", Reason::Unsupported, Firm, Plain),
            ("5007", Reason::ModelNotFound, Final, Plain),
            ("3042", Reason::ModelNotFound, Final, Plain),
            ("5016", Reason::Auth, Firm, Plain),
            ("5018", Reason::Auth, Firm, Plain),
            ("3041", Reason::Auth, Firm, Plain),
            ("3023", Reason::Auth, Firm, Permanent),
            ("3006", Reason::PayloadTooLarge, Firm, Plain),
            ("3007", Reason::Timeout, Firm, Plain),
            ("3008", Reason::Timeout, Firm, Plain),
            ("3021", Reason::RateLimit, Final, Plain),
            ("3036", Reason::RateLimit, Final, Long),
            ("4006", Reason::RateLimit, Final, Long),
            ("3040", Reason::Overloaded, Final, Plain),
        ],
    ),
    // cloud.baidu.com/doc/WENXINWORKSHOP: the platform's, then the models'.
    Vendor(
        &["qianfan", "baidu", "ernie", "wenxin"],
        &[
            ("1", Reason::ServerError, Hint, Plain),
            ("2", Reason::Overloaded, Firm, Plain),
            ("3", Reason::Unsupported, Firm, Plain),
            ("4", Reason::RateLimit, Firm, Long),
            ("6", Reason::Auth, Final, Plain),
            ("13", Reason::Auth, Final, Plain),
            ("14", Reason::Auth, Final, Plain),
            ("15", Reason::Auth, Final, Plain),
            ("17", Reason::RateLimit, Final, Long),
            ("18", Reason::RateLimit, Final, Plain),
            ("19", Reason::RateLimit, Final, Long),
            ("110", Reason::Auth, Final, Plain),
            ("111", Reason::Auth, Final, Plain),
            ("336000", Reason::ServerError, Hint, Plain),
            ("336001", Reason::Format, Hint, Plain),
            ("336002", Reason::Format, Firm, Plain),
            ("336003", Reason::Format, Hint, Plain),
            ("336006", Reason::Format, Firm, Plain),
            ("336100", Reason::Overloaded, Firm, Plain),
            ("336103", Reason::ContextOverflow, Final, Plain),
            ("336104", Reason::ContentFilter, Firm, Plain),
            ("336501", Reason::RateLimit, Firm, Plain),
            ("336502", Reason::RateLimit, Firm, Plain),
        ],
    ),
    Vendor(
        &["siliconflow", "silicon"],
        &[
            ("20012", Reason::ModelNotFound, Final, Plain),
            ("20015", Reason::Format, Hint, Plain),
            ("30001", Reason::Billing, Final, Plain),
            ("30011", Reason::Billing, Final, Plain),
            ("50501", Reason::Overloaded, Hint, Plain),
            ("50505", Reason::Overloaded, Firm, Plain),
            ("50603", Reason::Overloaded, Firm, Plain),
        ],
    ),
    Vendor(
        &["mistral"],
        &[
            ("1300", Reason::RateLimit, Firm, Plain),
            ("1500", Reason::ModelNotFound, Firm, Plain),
            ("3505", Reason::Overloaded, Firm, Plain),
        ],
    ),
];
