// Package quotas keeps rules of quotas that are changed while the gateway runs. The
// configuration file gives the base; a rule kept here wins over the one in the file
// that matches the same, and adds to the others where there is none.
//
// A [Book] has the rules, brings them into the gates, and writes every change to its
// [Store] before it is in force: what has been answered with success survives a
// restart. A change is one request of several operations, of which all are carried
// out or none; two that write at once lose nothing, because a store takes a document
// only in the place of the one that the writer has seen.
//
// What is kept may stop to fit the configuration: its gate is taken out of the file,
// or its rate is too small once the file no longer allows debts. Such a rule is kept,
// is not in force, and says why in [Book.Look].
package quotas
