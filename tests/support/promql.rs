//! The series and labels that a Prometheus expression uses. Its syntax is checked by promtool.

use std::collections::BTreeSet;

/// A series as an expression names it.
#[derive(Debug, Clone)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<Matcher>,
}

/// A condition on a label.
#[derive(Debug, Clone)]
pub struct Matcher {
    pub label: String,
    /// `=`, `!=`, `=~` or `!~`.
    pub operator: String,
    pub value: String,
}

/// The series and labels of one expression.
#[derive(Debug, Default)]
pub struct Expression {
    pub selectors: Vec<Selector>,
    /// The labels that it groups and joins by.
    pub labels: BTreeSet<String>,
    /// The labels that it makes (`label_replace`).
    pub made: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(String),
}

impl Matcher {
    /// The alternatives in the value of the matcher.
    pub fn values(&self) -> Vec<&str> {
        if self.operator.ends_with('~') {
            self.value.split('|').collect()
        } else {
            vec![&self.value]
        }
    }
}

impl Expression {
    pub fn read(text: &str) -> Self {
        let tokens = tokens(text);
        let mut expression = Self::default();
        let mut rest = tokens.as_slice();
        while let [token, after @ ..] = rest {
            rest = after;
            let Token::Word(word) = token else { continue };
            let opens = matches!(rest.first(), Some(Token::Sign(sign)) if sign == "(");
            match word.as_str() {
                "by" | "without" | "on" | "ignoring" | "group_left" | "group_right" if opens => {
                    let (labels, after) = list(rest, ")");
                    expression.labels.extend(labels.into_iter().filter_map(|token| match token {
                        Token::Word(label) => Some(label),
                        Token::Sign(_) | Token::Text(_) => None,
                    }));
                    rest = after;
                }
                "label_replace" => expression.made.extend(made(rest)),
                _ if opens || OPERATORS.contains(&word.as_str()) => {}
                // The word before is an aggregation.
                _ if matches!(rest.first(), Some(Token::Word(next)) if next == "by" || next == "without") =>
                    {}
                _ => {
                    let (selector, after) = selector(word, rest);
                    expression.selectors.push(selector);
                    rest = after;
                }
            }
        }
        expression
    }
}

/// Words that stand between expressions.
const OPERATORS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];

/// A series, and what follows it.
fn selector<'a>(metric: &str, rest: &'a [Token]) -> (Selector, &'a [Token]) {
    let metric = metric.to_owned();
    if !matches!(rest.first(), Some(Token::Sign(sign)) if sign == "{") {
        return (Selector { metric, matchers: Vec::new() }, rest);
    }
    let (inside, rest) = list(rest, "}");
    let matchers = inside.split(|token| *token == Token::Sign(",".to_owned()));
    let matchers = matchers.filter(|matcher| !matcher.is_empty()).map(|matcher| match matcher {
        [Token::Word(label), Token::Sign(operator), Token::Text(value)] => {
            Matcher { label: label.clone(), operator: operator.clone(), value: value.clone() }
        }
        other => panic!("{other:?} is no matcher of {metric}"),
    });
    let matchers = matchers.collect();
    (Selector { metric, matchers }, rest)
}

/// The label that `label_replace` makes: its second argument.
fn made(arguments: &[Token]) -> Option<String> {
    let mut depth = 0;
    for (at, token) in arguments.iter().enumerate() {
        match token {
            Token::Sign(sign) if sign == "(" => depth += 1,
            Token::Sign(sign) if sign == ")" => depth -= 1,
            Token::Sign(sign) if sign == "," && depth == 1 => {
                let Some(Token::Text(label)) = arguments.get(at + 1) else { break };
                return Some(label.clone());
            }
            Token::Sign(_) | Token::Text(_) | Token::Word(_) => {}
        }
    }
    None
}

/// The tokens between the first sign and `end`, and the tokens after `end`.
fn list<'a>(tokens: &'a [Token], end: &str) -> (Vec<Token>, &'a [Token]) {
    let end = tokens.iter().position(|token| *token == Token::Sign(end.to_owned())).unwrap();
    (tokens[1..end].to_vec(), &tokens[end + 1..])
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |it: char| it.is_ascii_alphanumeric() || "_:".contains(it);
        let length = if first == '"' {
            rest[1..].find('"').unwrap() + 2
        } else if first == '[' {
            rest.find(']').unwrap() + 1
        } else if first.is_ascii_digit() {
            rest.find(|it| !is_word(it) && it != '.').unwrap_or(rest.len())
        } else if is_word(first) {
            rest.find(|it| !is_word(it)).unwrap_or(rest.len())
        } else if ["!=", "=~", "!~"].iter().any(|sign| rest.starts_with(sign)) {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        match first {
            '"' => tokens.push(Token::Text(token[1..length - 1].to_owned())),
            _ if first == '[' || first.is_ascii_digit() || first.is_whitespace() => {}
            _ if is_word(first) => tokens.push(Token::Word(token.to_owned())),
            _ => tokens.push(Token::Sign(token.to_owned())),
        }
    }
    tokens
}
