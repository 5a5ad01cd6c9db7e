//! The contract of every layer.

use steadfast_classify::ClassifyLayer;
use steadfast_testkit::{Aspect, Chat, Contract, ContractedLayer, Exchange, Http, contract};

/// It reads what comes, and keeps nothing of it.
fn reads<E: Exchange, L: ContractedLayer<E>>(contract: Contract<E, L>) -> Contract<E, L> {
    contract
        .none(Aspect::Refusal, "it has its say once the reply is there")
        .none(Aspect::State, "an answer is read without those before it")
        .none(Aspect::Held, "a reader goes with the reply that it reads")
}

contract!(chat, reads(Contract::new(Chat, ClassifyLayer::default)));

contract!(http, reads(Contract::new(Http, ClassifyLayer::http)));

contract!(llm_http, reads(Contract::new(Http, ClassifyLayer::llm_http)));
