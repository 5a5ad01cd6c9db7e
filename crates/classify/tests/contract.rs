//! The contract of every layer.

use steadfast_classify::ClassifyLayer;
use steadfast_testkit::{Chat, Contract, Http, contract};

contract!(chat, Contract::new(Chat, ClassifyLayer::default));

contract!(http, Contract::new(Http, ClassifyLayer::http));
